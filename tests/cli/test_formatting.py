from typing import Literal

import pytest

from polyhead.cli.formatting import format_type, format_yaml
from polyhead.config.config_sections import DistillConfig, InitFromConfig, LoraConfig, ParallelConfig
from polyhead.config.model import EncoderOverride
from polyhead.config.recipe import Recipe


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (format_type, float, "float"),
        (format_type, int | None, "int | null"),
        (format_type, Literal["none", "linear"], "none | linear"),
        (format_type, tuple[float, float], "tuple[float, float]"),
        (format_type, list[str] | None, "list[str] | null"),
        *((format_yaml, None, "null"), (format_yaml, True, "true"), (format_yaml, 0.1, "0.1")),
        *((format_yaml, "", '""'), (format_yaml, (0.9, 0.98), "[0.9, 0.98]")),
    ],
)
def test_types_and_values_are_written_in_short(write, value, text):
    assert write(value) == text


def test_every_key_of_a_recipe_is_listed(cli):
    lines = cli("train", "--keys").out.splitlines()
    assert "train.lr: float = 0.001  peak learning rate" in lines
    for start in (
        "data.test: list[str] | list[CorpusConfig] | null = null  ",
        "model.position: part = sinusoidal  ",
        "init_from.layer_stride: int = 1  use the first layer and every n-th after it; 2 halves the depth",
        "train.lora.r: int = 8  rank of the adapters",
    ):
        assert any(line.startswith(start) for line in lines)
    optional = {"init_from": InitFromConfig, "distill": DistillConfig}
    sections = [optional.get(name, field.annotation) for name, field in Recipe.model_fields.items()]
    # in place of train.lora, train.parallel and model.encoder themselves
    n_nested = sum(len(kind.model_fields) - 1 for kind in (LoraConfig, ParallelConfig, EncoderOverride))
    assert len(lines) == sum(len(getattr(kind, "model_fields", [0])) for kind in sections) + n_nested
