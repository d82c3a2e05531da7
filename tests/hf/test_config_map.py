"""Rows of the table of config.json's keys, each read and written."""

from __future__ import annotations

from typing import Any

import pytest

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.hf import config_map
from polyhead.hf.config_map import (
    ConfigField,
    constant,
    defaults,
    ignore,
    map_bool,
    map_embedding_width,
    map_float,
    map_int,
    map_norm,
    map_tied_embeddings,
    require,
)
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import HF_GATED_ACTIVATIONS, map_activation

KEYS = (
    defaults(layers=3),
    constant(kind="decoder", attention="softmax", norm="rmsnorm", norm_first=True),
    map_int("vocab", "vocab_size"),
    map_int("dim", "d_model", 16),
    map_int("layers", "n_layers", 2),
    map_int("heads", "n_heads", 4),
    map_int("inner", "d_ff", optional=True),
    map_int("window", "attention.window", 8, optional=True),
    map_embedding_width("embedding"),
    map_activation("act", "silu", HF_GATED_ACTIVATIONS),
    map_bool("bias", "attention.bias feed_forward.bias", False),
    map_bool("beside", "block.name", False, true_value="parallel", false_value="transformer"),
    map_norm("eps", "layernorm", 1e-5),
    constant(norm={"bias": False}),
    map_float("drop", "dropout", 0.0),
    map_float("cap", "logit_softcap", optional=True),
    ignore("embed_drop", field_paths="dropout"),
    require("causal", True, is_written=True),
    require("rotary", False),
    map_tied_embeddings(True),
)
SAID = {
    "vocab": 50, "dim": 32, "layers": 5, "heads": 2, "inner": 40, "window": 6, "embedding": 20, "act": "gelu",
    "bias": True,
    "beside": True, "eps": 0.5, "drop": 0.25, "cap": 3.0, "embed_drop": 0.25, "causal": True,
    "tie_word_embeddings": False,
}  # fmt: skip


def read(**values: Any) -> ModelConfig:
    given = ConfigReader(values, "config.json")
    fields = config_map.read_fields(KEYS, given)
    given.reject_unknown()
    return ModelConfig.model_validate(fields)


def test_what_is_read_is_written_again() -> None:
    config = read(**SAID)
    assert (config.d_model, config.n_layers, config.d_ff, config.d_embedding) == (32, 5, 40, 20)
    assert (config.block.name, config.norm.name, config.norm.options) == (
        "parallel",
        "layernorm",
        {"eps": 0.5, "bias": False},
    )
    assert config.attention.options["window"] == 6
    assert config.attention.options["bias"] is config.feed_forward.options["bias"] is True
    assert config.tie_embeddings == "none"
    assert config_map.write_fields(KEYS, config) == SAID


def test_what_a_file_does_not_say() -> None:
    config = read(vocab=50)
    wanted = {
        "vocab": 50, "dim": 16, "layers": 3, "heads": 4, "inner": 64, "window": 8, "embedding": 16,
        "act": "silu", "bias": False,
        "beside": False, "eps": 1e-5, "drop": 0.0, "cap": None, "embed_drop": 0.0, "causal": True,
        "tie_word_embeddings": True,
    }  # fmt: skip
    assert config_map.write_fields(KEYS, config) == wanted
    assert config.d_embedding is None


def test_null_of_what_is_optional_is_none() -> None:
    config = read(vocab=50, window=None, inner=None, dim=None)
    assert config.attention.options["window"] is None
    assert (config.d_ff, config.d_model) == (64, 16)


def test_a_row_of_two_functions_sees_the_fields_before_it() -> None:
    head = ConfigField(
        lambda given, fields: {"head_dim": fields["d_model"] // 2}, lambda config: {"head": config.head_dim}
    )
    fields = config_map.read_fields((*KEYS, head), ConfigReader({"vocab": 50}, "config.json"))
    assert fields["head_dim"] == 8
    assert config_map.write_fields((head,), ModelConfig.model_validate(fields)) == {"head": 8}


def test_the_first_layer_says_what_all_layers_have() -> None:
    plain = read(vocab=50)
    pattern = {"layer_pattern": [{"attention": {"name": "softmax", "window": 5}}]}
    config = ModelConfig.model_validate(plain.model_dump() | pattern)
    assert config_map.write_fields(KEYS, config)["window"] == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "vocab is missing"),
        ({"dim": 0}, "dim is 0, expected an integer from 1"),
        ({"window": "x"}, "window is 'x', expected an integer from 1"),
        ({"drop": "x"}, "drop is 'x', expected a number"),
        ({"bias": 1}, "bias is 1, expected true or false"),
        ({"act": "gleu"}, "act is 'gleu', expected one of silu"),
        ({"causal": False}, "causal is false, expected true, the only supported value"),
        ({"rotary": True}, "rotary is true, expected false, the only supported value"),
        ({"other": 1}, "'other' unknown for this family"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        read(**({"vocab": 50} if values else {}) | values)
    assert f"config.json: {message}" in str(error.value)
