"""Tests of cli/recipe_keys.py."""

from __future__ import annotations

import pytest

from polyhead.cli import main
from polyhead.config.config_sections import DistillConfig, InitFromConfig, LoraConfig, ParallelConfig
from polyhead.config.recipe import Recipe


def test_every_key_of_a_recipe_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--keys"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "train.lr: float = 0.001  peak learning rate" in lines
    assert any(line.startswith("data.test: list[str] | null = null  ") for line in lines)
    assert any(line.startswith("model.position: part = sinusoidal  ") for line in lines)
    assert (
        "init_from.layer_stride: int = 1  use the first layer and every n-th after it; 2 halves the depth"
        in lines
    )
    assert (
        "train.lora.r: int = 8  rank of the adapters (width between A and B); a lower rank learns less and "
        "costs less" in lines
    )
    maybe = {"init_from": InitFromConfig, "distill": DistillConfig}
    sections = [maybe.get(name, field.annotation) for name, field in Recipe.model_fields.items()]
    # in the place of train.lora and train.parallel themselves
    within = len(LoraConfig.model_fields) - 1 + len(ParallelConfig.model_fields) - 1
    assert len(lines) == sum(len(getattr(kind, "model_fields", [0])) for kind in sections) + within
