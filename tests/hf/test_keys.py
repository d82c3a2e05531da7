"""Rows of the table of config.json's keys, each read and written."""

from __future__ import annotations

from typing import Any

import pytest

from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.hf import keys
from polyhead.hf.family import GATED, activation
from polyhead.hf.given import Given
from polyhead.hf.keys import Key, fixed, flag, norm, number, only, passed, size, tied, unsaid, width

KEYS = (
    unsaid(layers=3),
    fixed(kind="decoder", attention="softmax", norm="rmsnorm", norm_first=True),
    size("vocab", "vocab_size"),
    size("dim", "d_model", 16),
    size("layers", "n_layers", 2),
    size("heads", "n_heads", 4),
    size("inner", "d_ff", optional=True),
    size("window", "attention.window", 8, optional=True),
    width("embedding"),
    activation("act", "silu", GATED),
    flag("bias", "attention.bias feed_forward.bias", False),
    flag("beside", "block.name", False, yes="parallel", no="transformer"),
    norm("eps", "layernorm", 1e-5),
    fixed(norm={"bias": False}),
    number("drop", "dropout", 0.0),
    number("cap", "logit_softcap", optional=True),
    passed("embed_drop", places="dropout"),
    only("causal", True, said=True),
    only("rotary", False),
    tied(True),
)
SAID = {
    "vocab": 50, "dim": 32, "layers": 5, "heads": 2, "inner": 40, "window": 6, "embedding": 20, "act": "gelu", "bias": True,
    "beside": True, "eps": 0.5, "drop": 0.25, "cap": 3.0, "embed_drop": 0.25, "causal": True, "tie_word_embeddings": False,
}  # fmt: skip


def read(**values: Any) -> ModelConfig:
    given = Given(values, "config.json")
    fields = keys.read(KEYS, given)
    given.finish()
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
    assert keys.write(KEYS, config) == SAID


def test_what_a_file_does_not_say() -> None:
    config = read(vocab=50)
    wanted = {
        "vocab": 50, "dim": 16, "layers": 3, "heads": 4, "inner": 64, "window": 8, "embedding": 16, "act": "silu", "bias": False,
        "beside": False, "eps": 1e-5, "drop": 0.0, "cap": None, "embed_drop": 0.0, "causal": True, "tie_word_embeddings": True,
    }  # fmt: skip
    assert keys.write(KEYS, config) == wanted
    assert config.d_embedding is None


def test_null_of_what_is_optional_is_none() -> None:
    config = read(vocab=50, window=None, inner=None, dim=None)
    assert config.attention.options["window"] is None
    assert (config.d_ff, config.d_model) == (64, 16)


def test_a_row_of_two_functions_sees_the_fields_before_it() -> None:
    head = Key(
        lambda given, fields: {"head_dim": fields["d_model"] // 2}, lambda config: {"head": config.head_dim}
    )
    fields = keys.read((*KEYS, head), Given({"vocab": 50}, "config.json"))
    assert fields["head_dim"] == 8
    assert keys.write((head,), ModelConfig.model_validate(fields)) == {"head": 8}


def test_the_first_layer_says_what_all_layers_have() -> None:
    plain = read(vocab=50)
    pattern = {"pattern": [{"attention": {"name": "softmax", "window": 5}}]}
    config = ModelConfig.model_validate(plain.model_dump() | pattern)
    assert keys.write(KEYS, config)["window"] == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "vocab is missing"),
        ({"dim": 0}, "dim is 0, wanted a whole number from 1"),
        ({"window": "x"}, "window is 'x', wanted a whole number from 1"),
        ({"drop": "x"}, "drop is 'x', wanted a number"),
        ({"bias": 1}, "bias is 1, wanted true or false"),
        ({"act": "gleu"}, "act is 'gleu', wanted one of silu"),
        ({"causal": False}, "causal is false, wanted true, all that is built"),
        ({"rotary": True}, "rotary is true, wanted false, all that is built"),
        ({"other": 1}, "'other' not known for this family"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        read(**({"vocab": 50} if values else {}) | values)
    assert f"config.json: {message}" in str(error.value)
