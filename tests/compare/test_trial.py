from pathlib import Path

import pytest
from tests.compare.compare_helpers import UntrainedTask, compare, read_rows

from polyhead.cli import main
from polyhead.compare import trial
from polyhead.compare.sweep import Budget
from polyhead.compare.trial import TrainingClock, compute_steps, read_clock, with_trial_schedule
from polyhead.config.config_sections import LoraConfig
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe
from polyhead.viz.run_record import StepTime


def test_refused_and_failed_designs_are_rows(run_trials, capsys):
    options = ["--vary", "n_heads=3", "--vary", "lr=1e38"]
    rows = compare("toy", *options, budget="12steps")
    out = capsys.readouterr().out
    refused_row, failed_row = rows["n_heads=3"], rows["lr=1e38"]
    statuses = {name: row["status"] for name, row in rows.items()}
    assert statuses == {"base": "done", "n_heads=3": "refused", "lr=1e38": "failed"}
    assert refused_row["message"].startswith("model: d_model (16) must be divisible by n_heads (3)")
    assert "not finite" in failed_row["message"] and failed_row["loss"] is None
    assert "lr=1e38: failed: " in out and "n_heads=3: cannot be built: " in out
    compare("toy", *options, budget="12steps")
    assert run_trials == ["base.s1", "lr=1e38.s1"], "a divergence is a result, and not run again"


def test_trial_out_of_memory_is_run_again(run_trials, monkeypatch):
    def raise_memory_error(*args, **options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("polyhead.compare.trial.run_training", raise_memory_error)
        assert main(["compare", "toy.yaml", "--budget", "1steps", "--seeds", "2"]) == 1
        assert read_rows()["base"]["message"] == "out of memory"
    compare("toy", "--seeds", "2")
    assert run_trials == ["base.s1", "base.s2"] * 2


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
    monkeypatch.setattr(trial, "MIN_PROBE_SECONDS", 0.05)
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


def test_clock_measures_training_also_when_resumed(tmp_path, monkeypatch):
    now, path = [100.0], tmp_path / "clock"
    monkeypatch.setattr(trial.time, "perf_counter", lambda: now[0])
    clock = TrainingClock(path, 0)
    now[0] += 50  # tokenizer, text
    clock.info("about to begin")
    now[0] += 3
    clock.log_train({"step": 4})
    now[0] += 20  # an evaluation
    clock.log_valid({"step": 4})
    now[0] += 5
    clock.info("a step was skipped")
    clock.log_train({"step": 8})
    clock.close()
    assert read_clock(path) == [StepTime(4, 3.0), StepTime(8, 8.0)]
    # resumed from step 10, after it was killed while writing
    path.write_text("[4, 3.0]\n[8, 8.0]\n[12, 11.0]\n[16, 1")
    clock = TrainingClock(path, 10)
    now[0] += 2
    clock.log_train({"step": 12})
    clock.close()
    assert read_clock(path) == [StepTime(4, 3.0), StepTime(8, 8.0), StepTime(10, 9.5), StepTime(12, 11.5)]
