import json

from tests.estimate.plan_helpers import workdir as workdir

from polyhead.cost.communication import ParallelLayout
from polyhead.estimate.plan import estimate
from polyhead.estimate.report import format_details
from polyhead.estimate.summary import summarize
from polyhead.run.recipe import load_recipe


def test_plan_is_json_and_text(workdir):
    recipe = load_recipe("translation.yaml")
    plan = estimate(recipe, probe=False, layout=ParallelLayout(2, 2), batch_size=None)
    tree = json.loads(json.dumps(plan.to_json()))
    assert tree["parameters"] == plan.parameters
    assert tree["memory"]["optimizer"] == plan.memory.optimizer
    assert tree["decoding"]["caches"][0]["cache"] == {"name": "static", "chunk": 32, "preallocate": False}
    assert tree["traffic"]["data"] == plan.traffic.data
    assert f"{plan.parameters:,} parameters" in "\n".join(format_details(plan))
    assert "note:" not in "\n".join(summarize(plan))
