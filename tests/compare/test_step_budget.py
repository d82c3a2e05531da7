"""Tests of compare/step_budget.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compare.cost_metrics_helpers import Ready

from polyhead.compare.budget import Budget
from polyhead.compare.step_budget import compute_steps, with_trial_schedule
from polyhead.config.config_sections import LoraConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        (Budget("recipe"), lambda tokens, flops: 24),
        (Budget("steps", 17), lambda tokens, flops: 17),
        (Budget("tokens", 5000), lambda tokens, flops: round(5000 / tokens)),
        (Budget("flops", 1e9), lambda tokens, flops: round(1e9 / (3 * flops * tokens))),
    ],
)
def test_a_budget_is_turned_into_steps(budget: Budget, steps: object) -> None:
    ready = Ready("train.accumulate=2")
    lengths = [len(row) + 1 for row in ready.tokenizer.encode(Path("train.en").read_text().splitlines())]
    tokens = 2 * sum(lengths) / len(ready.task.epoch_batches(0))
    assert 2 * ready.part.tokens_per_step(ready.task) == pytest.approx(tokens)
    flops = ready.flops()
    found = compute_steps(budget, ready.recipe, ready.model, ready.task, flops)
    assert found["steps"] == steps(tokens, flops)  # type: ignore[operator]
    if budget.kind == "flops":  # weights that stay as they are cost no backward pass of their own
        train = ready.recipe.train.model_copy(update={"lora": LoraConfig()})
        adapted = ready.recipe.model_copy(update={"train": train})
        few = compute_steps(budget, adapted, ready.model, ready.task, flops)["steps"]
        assert few == round(1e9 / (2 * flops * tokens))


@pytest.mark.usefixtures("place")
def test_a_time_is_turned_into_steps_by_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Ready()
    monkeypatch.setattr("polyhead.compare.step_budget.MIN_PROBE_SECONDS", 0.05)
    found = compute_steps(Budget("time", 1.0), ready.recipe, ready.model, ready.task, 1.0)
    assert found["steps"] == round(1.0 / found["seconds_per_step"]) > 1


@pytest.mark.usefixtures("place")
def test_a_budget_of_less_than_a_step_is_refused() -> None:
    ready = Ready()
    with pytest.raises(UserError, match=r"the budget \(1 target tokens\) is less than one step"):
        compute_steps(Budget("tokens", 1), ready.recipe, ready.model, ready.task, 1.0)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("steps", [1, 2, 7, 15, 16, 29, 100, 4321, 100_000])
def test_a_cell_is_evaluated_about_fifteen_times_and_right_after_a_tick_of_the_clock(steps: int) -> None:
    train = with_trial_schedule(load_recipe("toy.yaml"), steps).train
    points = steps // train.eval_every
    assert points == steps if steps < 15 else 15 <= points <= 29
    assert train.eval_every % train.log_every == 0
    assert (train.steps, train.epochs, train.patience, train.eval_bleu) == (steps, None, None, False)
    Recipe.model_validate(with_trial_schedule(load_recipe("toy.yaml"), steps).model_dump())


@pytest.mark.usefixtures("place")
def test_averaged_checkpoints_lie_in_the_same_share_of_the_steps() -> None:
    recipe = load_recipe(
        "toy.yaml",
        ["train.steps=11000", "train.save_every=250", "train.average_checkpoints=10", "train.keep=10"],
    )
    train = with_trial_schedule(recipe, 2200).train
    assert (train.save_every, train.average_checkpoints, train.keep) == (50, 10, 10)
