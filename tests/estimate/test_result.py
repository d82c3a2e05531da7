"""Tests of estimate/result.py."""

from __future__ import annotations

import json

from tests.estimate.plan_helpers import home as home

from polyhead.cost.communication import ParallelLayout
from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_details
from polyhead.estimate.summary import summarize
from polyhead.run.recipe import load_recipe


def test_a_plan_is_json_and_lines(home):
    made = estimate(
        load_recipe("translation.yaml"), probe=False, layout=ParallelLayout(2, 2), batch_size=None
    )
    tree = json.loads(json.dumps(made.to_json()))
    assert tree["parameters"] == made.parameters
    assert tree["memory"]["optimizer"] == made.memory.optimizer
    assert tree["decoding"]["caches"][0]["cache"] == {"name": "static", "chunk": 32, "preallocate": False}
    assert made.traffic is not None
    assert tree["traffic"]["data"] == made.traffic.data
    assert f"{made.parameters:,} parameters" in "\n".join(format_details(made))
    assert "note:" not in "\n".join(summarize(made))
