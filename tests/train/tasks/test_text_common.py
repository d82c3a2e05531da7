"""Tests of train/tasks/text_common.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.rank_runs import recipe_of

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("unsynced")


def refused(recipe: Recipe, message: str, **data: Any) -> None:
    """Before the first step, in a directory that nothing was learned in."""
    recipe, notes = recipe.model_copy(update={"data": recipe.data.model_copy(update=data)}), Notes()
    with pytest.raises(UserError, match=message):
        run_training(recipe, report=notes)
    assert notes.rows == []
    assert not checkpoint.list_steps(recipe.out / "checkpoints")


def test_a_test_text_of_one_token_predicts_nothing(place: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n")
    recipe = recipe_of(place, "language-model", "late-one")
    refused(
        recipe, "the test text is only one token", document_separator="file", test=[str(tmp_path / "a.txt")]
    )
