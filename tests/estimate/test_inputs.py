import pytest
from tests.estimate.plan_helpers import TASKS
from tests.estimate.plan_helpers import workdir as workdir

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.cost.workload import BatchShape
from polyhead.estimate.plan import estimate
from polyhead.models import preset_config
from polyhead.run.recipe import load_recipe


@pytest.mark.parametrize("name", TASKS)
def test_missing_text_is_a_note(workdir, name):
    for path in [*workdir.glob("t.*"), *workdir.glob("v.*")]:
        path.unlink()
    plan = estimate(load_recipe(f"{name}.yaml", ["train.epochs=1", "train.max_tokens=160"]), probe=False)
    assert (plan.batches, plan.steps, plan.operations.run) == (None, None, None)
    assert plan.largest.rows * plan.largest.length == 160
    assert any("not found" in note for note in plan.notes)
    recipe = load_recipe(f"{name}.yaml", ["train.steps=7", "train.epochs=null"])
    assert estimate(recipe, probe=False).steps == 7


def test_steps_of_a_model_follow_from_its_tokens():
    sizes = {"probe": False, "batch_size": 2, "seq_len": 10, "train_tokens": 100}
    plan = estimate(preset_config("tiny", 50), context_len=8, **sizes)
    assert (plan.largest, plan.steps) == (BatchShape(2, 10, 10), 5)
    for fields in ({}, {"labels": ("a", "b"), "lm_head": False}):  # whose labels are fewer than tokens
        encoder = ModelConfig(kind="encoder", vocab_size=50, d_model=16, n_layers=1, n_heads=2, **fields)
        assert estimate(encoder, **sizes).steps == 5
    with pytest.raises(UserError, match="more than max_len"):
        estimate(preset_config("tiny", 50), seq_len=2000)
