"""Settings made in Python are refused as those of a recipe are: one line that names the key, and the nearest
right one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe

GIVEN: dict[str, Any] = {"data": {"train": "a", "valid": "b"}, "train": {"steps": 1}}


def test_a_recipe_file_is_answered_alike(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "data: {train: a, valid: b}\ntrain: {steps: 1}\ndistill: {teacher: x, temprature: 2}\n"
    )
    with pytest.raises(UserError) as refused:
        load_recipe(tmp_path / "a.yaml")
    assert str(refused.value) == "distill.temprature: unknown key; did you mean 'temperature'?"


def test_settings_within_settings_keep_what_was_given() -> None:
    recipe = Recipe(**GIVEN, model={"d_model": 32, "n_heads": 2})
    assert (recipe.model.d_model, recipe.train.steps) == (32, 1)
    assert Recipe.model_validate(recipe.model_dump()) == recipe
