"""Tests of core/messages.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyhead as ph
from polyhead.config.data_config import DataConfig
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelSpec
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.key_aliases import KEY_ALIASES
from polyhead.core.messages import section_type
from polyhead.run.recipe import load_recipe

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
            ["n_heads: 0 is out of range: should be greater than 0", "vocab_size: 'many' is not an integer"],
        ),
        (lambda: ModelSpec(norm="rmsnrm"), ["norm: unknown norm 'rmsnrm'; did you mean 'rmsnorm'?"]),
        (
            lambda: ModelSpec(layer_pattern=[{}, {"atention": "softmax"}]),
            ["layer_pattern[1].atention: unknown key; did you mean 'attention'?"],
        ),
        (lambda: TrainConfig(steps=3, stps=3), ["stps: unknown key; did you mean 'steps'?"]),
        (lambda: TrainConfig(), ["give steps or epochs, e.g. train.steps=10000"]),
        (lambda: GenerationConfig(beam_sise=3), ["beam_sise: unknown key; did you mean 'beam_size'?"]),
        (lambda: DataConfig(), ["train: missing; this key has no default"]),
        (
            lambda: Recipe(**GIVEN, init_from={"run": "x", "lyer_stride": 2}),
            ["init_from.lyer_stride: unknown key; did you mean 'layer_stride'?"],
        ),
        (
            lambda: Recipe(**{**GIVEN, "train": {"steps": 0}, "model": {"d_mdoel": 2}}),
            ["model.d_mdoel: unknown key; did you mean 'd_model'?", "train.steps: 0 is out of range: should "
                "be greater than 0"],
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_a_line(make: Callable[[], object], lines: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert [line.split(" Known:")[0] for line in str(refused.value).splitlines()] == lines


NAMES = [(name, key) for key, names in KEY_ALIASES.items() for name in names.split()]


@pytest.mark.parametrize(("name", "key"), NAMES)
def test_a_name_from_elsewhere_is_not_one_of_ours_at_the_same_place(name: str, key: str) -> None:
    above, _, _ = key.rpartition(".")
    root = section_type(Recipe.model_fields[above].annotation) if above in Recipe.model_fields else None
    assert name not in (root.model_fields if root else Recipe.model_fields), f"{name} is a key itself"


def test_a_misspelt_section_is_told_alone(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace("train: {", "trian: {"))
    with pytest.raises(UserError) as error:
        load_recipe(recipe)
    assert str(error.value) == "trian: unknown key; did you mean 'train'?"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text("data: {train: a, valid: b}\ntrain: {steps: 1}\n")
    return path
