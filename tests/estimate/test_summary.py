"""Tests of estimate/summary.py."""

from __future__ import annotations

from tests.estimate.plan_helpers import home as home

from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_si
from polyhead.estimate.summary import summarize
from polyhead.export.targets import describe_targets, find_obstacles
from polyhead.models import preset_config
from polyhead.run.recipe import load_recipe
from polyhead.viz.eta_model import format_seconds


def test_four_plain_lines_come_first_and_then_where_the_model_goes(home):
    made = estimate(load_recipe("translation.yaml", ["train.steps=7"]), seconds=0.1)
    first = list(summarize(made))
    size, time, memory, quality, exports = first
    assert made.time is not None and made.time.run is not None
    assert size == f"size: {made.parameters:,} parameters, {format_si(4 * made.parameters)}B in fp32"
    assert time.startswith(f"time on this machine now: {format_seconds(made.time.run)} for 7 updates of ")
    assert memory.startswith(
        f"memory: training holds {format_si(made.memory.total or 0)}B of tensors at its peak"
    )
    assert memory.endswith(f"this machine has {format_si(made.machine)}B")
    assert quality == "quality: no measurement of this size"
    assert exports == describe_targets(
        find_obstacles(load_recipe("translation.yaml").model.with_vocabulary(300))
    )
    alone = list(summarize(estimate(preset_config("tiny", 50), probe=False, seq_len=8)))
    assert alone[1:4:2] == ["time on this machine now: not measured", "quality: unknown without the text"]
