"""Cells of a comparison whose training is on another device: measured there, and timed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.device.ghost import DEVICE, haunted
from tests.train.conftest import Notes, unsynced
from tests.train.test_ranks import place, recipe_of

from polyhead.compare import files
from polyhead.compare import steps as counting
from polyhead.compare.cell import run_cell
from polyhead.compare.files import read_json, write_json
from polyhead.compare.tasks.base import COMPARED, compared
from polyhead.recipe import Recipe
from polyhead.registry import TASK
from polyhead.text.learn import train_tokenizer
from polyhead.train.distill import Distilled
from polyhead.train.pipeline import run_training

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
        texts = TASK.get(recipe.task.name).texts(recipe)
        train_tokenizer(texts, recipe.tokenizer.kind, recipe.tokenizer.vocab_size).save(tokenizer)
    asked = {"recipe": recipe.model_dump(mode="json"), "budget": budget, "tokenizer": str(tokenizer)}
    write_json(recipe.out / files.CELL, asked | {"steps": steps})
    assert run_cell(recipe.out)
    found = read_json(recipe.out / files.RESULT)
    assert found is not None
    assert found["status"] == "done", found["message"]
    return found


@pytest.mark.parametrize("task", COMPARED.names())
def test_a_cell_measures_there_what_it_measures_here(task: str, place: Path) -> None:
    budget, tokenizer = ("steps", 4), place / f"tokenizer-{task}"
    wanted = measured(recipe_of(place, task, f"cell-{task}-here", device="cpu"), budget, tokenizer)
    with haunted():
        there = recipe_of(place, task, f"cell-{task}-there", device=str(DEVICE))
        found = measured(there, budget, tokenizer)
    assert found.keys() == wanted.keys()
    for name in ("parameters", "flops_per_token", "cache_per_token", "cache_constant", "dead"):
        assert found[name] == wanted[name], name
    for measure in compared(task).measures:
        assert found[measure.name] == pytest.approx(wanted[measure.name], rel=1e-3), measure.name
    assert (found["decode_tokens_per_s"] is None) == (wanted["decode_tokens_per_s"] is None)


def test_a_budget_of_time_is_probed_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The student and its teacher, who are otherwise as fast as the CPU."""
    seen: list[torch.device] = []
    before = counting.rehearse

    def rehearse(model: Any, task: Any, *rest: Any) -> None:
        assert isinstance(task, Distilled)
        seen.extend(
            p.device for one in (model, *(t.run.model for t in task.teachers)) for p in one.parameters()
        )
        before(model, task, *rest)

    monkeypatch.setattr(counting, "rehearse", rehearse)
    monkeypatch.setattr(counting, "SHARE", 0.0)
    monkeypatch.setattr(counting, "LEAST", 0.1)
    teacher = recipe_of(place, "language-model", "teacher", precision="fp32", device="cpu")
    run_training(teacher, report=Notes())
    with haunted():
        student = recipe_of(place, "language-model", "student", device=str(DEVICE)).model_dump(mode="json")
        taught = Recipe.model_validate(student | {"distill": {"teacher": str(teacher.out)}})
        assert measured(taught, ("time", 0.5), teacher.out)["seconds_per_step"] > 0
    assert set(seen) == {DEVICE}
