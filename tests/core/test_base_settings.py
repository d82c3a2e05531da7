"""Settings made in Python are refused as those of a recipe are: one line that names the key, and the nearest right one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyhead as ph
from polyhead.config.data_config import DataConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.config.recipe import Recipe, TrainConfig, load_recipe
from polyhead.core.errors import UserError

GIVEN: dict[str, Any] = {"data": {"train": "a", "valid": "b"}, "train": {"steps": 1}}


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (
            lambda: ph.ModelConfig(vocab_size=9, d_mdoel=3),
            ["d_mdoel: unknown key; did you mean 'd_model'?"],
        ),
        (
            lambda: ph.ModelConfig(vocab_size="many", n_heads=0),
            ["n_heads: 0 is out of range: should be greater than 0", "vocab_size: 'many' is not a whole number"],
        ),
        (lambda: ModelSpec(norm="rmsnrm"), ["norm: unknown norm 'rmsnrm'; did you mean 'rmsnorm'?"]),
        (
            lambda: ModelSpec(pattern=[{}, {"atention": "softmax"}]),
            ["pattern[1].atention: unknown key; did you mean 'attention'?"],
        ),
        (lambda: TrainConfig(steps=3, stps=3), ["stps: unknown key; did you mean 'steps'?"]),
        (lambda: TrainConfig(), ["give steps or epochs, e.g. train.steps=10000"]),
        (lambda: GenerationConfig(beam_sise=3), ["beam_sise: unknown key; did you mean 'beam_size'?"]),
        (lambda: DataConfig(), ["train: missing; it has no default"]),
        (
            lambda: Recipe(**GIVEN, start={"run": "x", "evry": 2}),
            ["start.evry: unknown key; did you mean 'every'?"],
        ),
        (
            lambda: Recipe(**{**GIVEN, "train": {"steps": 0}, "model": {"d_mdoel": 2}}),
            ["model.d_mdoel: unknown key; did you mean 'd_model'?", "train.steps: 0 is out of range: should be greater than 0"],
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_a_line(make: Callable[[], object], lines: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert [line.split(" Known:")[0] for line in str(refused.value).splitlines()] == lines


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
