from pathlib import Path

import pytest
from tests.compare.compare_helpers import UntrainedTask

from polyhead.compare import step_budget
from polyhead.compare.budget import Budget
from polyhead.compare.step_budget import compute_steps, with_trial_schedule
from polyhead.config.config_sections import LoraConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe

FLOPS = 1000.0  # of a token
pytestmark = pytest.mark.usefixtures("workdir")


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget("recipe"), lambda tokens: 24),
        (Budget("steps", 17), lambda tokens: 17),
        (Budget("tokens", 5000), lambda tokens: round(5000 / tokens)),
        (Budget("flops", 1e9), lambda tokens: round(1e9 / (3 * FLOPS * tokens))),
    ],
)
def test_budget_in_steps(budget, expected):
    toy = UntrainedTask("toy", "train.accumulate=2")
    lengths = [len(row) + 1 for row in toy.tokenizer.encode(Path("train.en").read_text().splitlines())]
    tokens = 2 * sum(lengths) / len(toy.task.epoch_batches(0))
    assert 2 * toy.compared.tokens_per_step(toy.task) == pytest.approx(tokens)
    assert compute_steps(budget, toy.recipe, toy.model, toy.task, FLOPS)["steps"] == expected(tokens)
    if budget.kind == "flops":  # frozen weights have no backward pass of their own
        train = toy.recipe.train.model_copy(update={"lora": LoraConfig()})
        recipe = toy.recipe.model_copy(update={"train": train})
        n_steps = compute_steps(budget, recipe, toy.model, toy.task, FLOPS)["steps"]
        assert n_steps == round(1e9 / (2 * FLOPS * tokens))


def test_budget_is_probed_and_at_least_one_step(monkeypatch):
    toy = UntrainedTask("toy")
    monkeypatch.setattr(step_budget, "MIN_PROBE_SECONDS", 0.05)
    result = compute_steps(Budget("time", 10.0), toy.recipe, toy.model, toy.task, 1.0)
    assert result["steps"] == round(10.0 / result["seconds_per_step"]) > 1
    with pytest.raises(UserError, match=r"the budget \(1 target tokens\) is less than one step"):
        compute_steps(Budget("tokens", 1), toy.recipe, toy.model, toy.task, 1.0)


@pytest.mark.parametrize("steps", [1, 2, 7, 15, 16, 29, 100, 4321, 100_000])
def test_trial_is_evaluated_about_fifteen_times(steps):
    recipe = with_trial_schedule(load_recipe("toy.yaml"), steps)
    train = recipe.train
    n_evaluations = steps // train.eval_every
    assert n_evaluations == steps if steps < 15 else 15 <= n_evaluations <= 29
    assert train.eval_every % train.log_every == 0
    assert (train.steps, train.epochs, train.patience, train.eval_bleu) == (steps, None, None, False)
    Recipe.model_validate(recipe.model_dump())


def test_averaged_checkpoints_keep_their_fraction_of_steps():
    changes = ["train.steps=11000", "train.save_every=250", "train.average_checkpoints=10", "train.keep=10"]
    train = with_trial_schedule(load_recipe("toy.yaml", changes), 2200).train
    assert (train.save_every, train.average_checkpoints, train.keep) == (50, 10, 10)
