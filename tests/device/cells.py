"""Cells of a comparison whose training is on another device: measured there, and timed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.device.ghost import DEVICE, haunted
from tests.train.conftest import Notes, unsynced
from tests.train.distributed.rank_runs import place, recipe_of

from polyhead.compare import io as io_module
from polyhead.compare import step_budget as counting
from polyhead.compare.io import read_json_file, write_json_file
from polyhead.compare.tasks.base import COMPARED_TASKS, get_compared_task
from polyhead.compare.trial import run_trial
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distill import DistillationTask
from polyhead.train.run_training import run_training

__all__ = ["place", "unsynced"]
pytestmark = pytest.mark.usefixtures("unsynced")


def measured(
    recipe: Recipe, budget: tuple[str, float], tokenizer: Path, steps: int | None = None
) -> dict[str, Any]:
    """The result of a cell of that recipe."""
    recipe = recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"test": recipe.data.valid, "target_lang": "en"})}
    )
    if not tokenizer.is_dir():
        texts = TASK.get(recipe.task.name).iter_texts(recipe)
        train_tokenizer(texts, recipe.tokenizer.kind, recipe.tokenizer.vocab_size).save(tokenizer)
    asked = {"recipe": recipe.model_dump(mode="json"), "budget": budget, "tokenizer": str(tokenizer)}
    write_json_file(recipe.out / io_module.TRIAL_FILE, asked | {"steps": steps})
    assert run_trial(recipe.out)
    found = read_json_file(recipe.out / io_module.RESULT_FILE)
    assert found is not None
    assert found["status"] == "done", found["message"]
    return found


@pytest.mark.parametrize("task", COMPARED_TASKS.names())
def test_a_cell_measures_there_what_it_measures_here(task: str, place: Path) -> None:
    budget, tokenizer = ("steps", 4), place / f"tokenizer-{task}"
    wanted = measured(recipe_of(place, task, f"cell-{task}-here", device="cpu"), budget, tokenizer)
    with haunted():
        there = recipe_of(place, task, f"cell-{task}-there", device=str(DEVICE))
        found = measured(there, budget, tokenizer)
    assert found.keys() == wanted.keys()
    for name in ("parameters", "flops_per_token", "cache_per_token", "cache_constant", "dead"):
        assert found[name] == wanted[name], name
    for measure in get_compared_task(task).measures:
        assert found[measure.name] == pytest.approx(wanted[measure.name], rel=1e-3), measure.name
    assert (found["decode_tokens_per_s"] is None) == (wanted["decode_tokens_per_s"] is None)


def test_a_budget_of_time_is_probed_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The student and its teacher, who are otherwise as fast as the CPU."""
    seen: list[torch.device] = []
    before = counting.check_memory

    def rehearse(training: Any, task: Any, *rest: Any) -> None:
        assert isinstance(task, DistillationTask)
        models = (training.model, *(teacher.run.model for teacher in task.teachers))
        seen.extend(p.device for one in models for p in one.parameters())
        before(training, task, *rest)

    monkeypatch.setattr(counting, "check_memory", rehearse)
    monkeypatch.setattr(counting, "PROBE_SHARE", 0.0)
    monkeypatch.setattr(counting, "MIN_PROBE_SECONDS", 0.1)
    teacher = recipe_of(place, "language-model", "teacher", precision="fp32", device="cpu")
    run_training(teacher, report=Notes())
    with haunted():
        student = recipe_of(place, "language-model", "student", device=str(DEVICE)).model_dump(mode="json")
        taught = Recipe.model_validate(student | {"distill": {"teacher": str(teacher.out)}})
        assert measured(taught, ("time", 0.5), teacher.out)["seconds_per_step"] > 0
    assert set(seen) == {DEVICE}
