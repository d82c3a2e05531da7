"""Tests of config/config_sections.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.config.recipe_helpers import TEXT, written
from tests.config.recipe_helpers import recipe as recipe

from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe


def test_sections_that_may_be_absent_are_changed_key_by_key(recipe: Path) -> None:
    got = load_recipe(
        recipe,
        ["init_from=runs/a", "init_from.layer_stride=2", "distill.teacher=runs/b", "train.lr_factors.head=5"],
    )
    assert got.init_from is not None
    assert got.distill is not None
    assert (got.init_from.run, got.init_from.layer_stride, got.distill.teacher, got.train.lr_factors) == (
        "runs/a",
        2,
        ["runs/b"],
        {"head": 5.0},
    )
    with pytest.raises(UserError, match=r"every.*init_from\.layer_stride"):
        load_recipe(recipe, ["every=2"])


def test_sections_left_empty_are_their_defaults(tmp_path: Path, recipe: Path) -> None:
    path = written(tmp_path / "small.yml", TEXT + "model:\ngeneration: null\n")
    assert load_recipe(path) == load_recipe(recipe)
