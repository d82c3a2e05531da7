from tests.estimate.plan_helpers import workdir as workdir

from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_si
from polyhead.estimate.summary import summarize
from polyhead.export.targets import describe_targets, find_obstacles
from polyhead.models import preset_config
from polyhead.run.recipe import load_recipe
from polyhead.viz.eta_model import format_seconds


def test_summary_is_size_time_memory_quality_and_exports(workdir):
    recipe = load_recipe("translation.yaml", ["train.steps=7"])
    plan = estimate(recipe, seconds=0.1)
    size, time, memory, quality, exports = summarize(plan)
    assert size == f"size: {plan.parameters:,} parameters, {format_si(4 * plan.parameters)}B in fp32"
    assert time.startswith(f"time on this machine now: {format_seconds(plan.time.run)} for 7 updates of ")
    assert memory.startswith(f"memory: training holds {format_si(plan.memory.total)}B of tensors at its peak")
    assert memory.endswith(f"this machine has {format_si(plan.machine)}B")
    assert quality == "quality: no measurement of this size"
    assert exports == describe_targets(find_obstacles(recipe.model.with_vocabulary(300)))
    lines = list(summarize(estimate(preset_config("tiny", 50), probe=False, seq_len=8, context_len=8)))
    assert lines[1:4:2] == ["time on this machine now: not measured", "quality: unknown without the text"]
