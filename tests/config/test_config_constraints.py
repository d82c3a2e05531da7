"""Tests of config/config_constraints.py."""

from __future__ import annotations

from typing import Any

import pytest

from polyhead import ModelConfig
from polyhead.nn.validate_model import check_model


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"d_model": 100}, r"d_model \(100\) must be divisible by n_heads \(8\); the nearest is 96"),
        ({"d_model": 3, "n_heads": 8}, r"d_model \(3\) must be divisible by n_heads \(8\); the nearest is 8"),
        ({"n_kv_heads": 3}, r"n_kv_heads \(3\) must divide n_heads \(8\): one of 1, 2, 4, 8"),
        ({"n_kv_heads": 16}, r"n_kv_heads \(16\) must divide n_heads \(8\)"),
        ({"position": "ropee"}, "unknown position 'ropee'; did you mean 'rope'"),
        ({"norm": "layer_norm"}, "unknown norm 'layer_norm'; did you mean 'layernorm'"),
        ({"vocab_size": 0}, "greater than 0"),
        ({"head_dim": 0}, "greater than 0"),
        ({"d_model": 100, "n_kv_heads": 2}, "the nearest is 96; or give head_dim"),
        (
            {"sandwich_norm": True},
            "sandwich_norm requires norm_first=true",
        ),
        (
            {"norm_first": True, "sandwich_norm": "after", "embedding_norm": "first"},
            "embedding_norm=first replaces a norm before attention: .*, without sandwich_norm=after",
        ),
        (
            {"norm_first": True, "sandwich_norm": "before"},
            "sandwich_norm: 'before' is not true or false, and is not one of after",
        ),
        ({"decoder_attention": "sofmax"}, "unknown attention 'sofmax'; did you mean 'softmax'"),
        (
            {"cross_attention": {"name": "softmax", "windo": 2}},
            "attention 'softmax' has no option 'windo'; did you mean 'window'",
        ),
        ({"decoder_block": "lstn"}, "unknown block 'lstn'; did you mean 'lstm'"),
        (
            {"attention": {"name": "softmax", "sink": 2}},
            "sink is 2; it is the number of tokens seen beyond a window",
        ),
        (
            {"attention": {"name": "softmax", "tie": "qk"}, "n_kv_heads": 2},
            "as many key heads as query heads",
        ),
        (
            {"attention": {"name": "softmax", "tie": "kv"}, "v_head_dim": 2},
            "values as wide as keys: v_head_dim=64",
        ),
        (
            {"cross_attention": {"name": "softmax", "softcap": 0}},
            "softcap must be above 0",
        ),
        (
            {"norm": {"name": "batchnorm", "momentum": 0}},
            "momentum of batchnorm must be above 0",
        ),
        (
            {"feed_forward": {"name": "conv1x1", "activation": "gleu"}},
            "'gleu' is not one of .*; did you mean 'gelu'",
        ),
        ({"dropout": 1.0}, "less than 1"),
        ({"d_modle": 3}, "d_modle"),
        ({"tie_embeddings": "some"}, "is not one of all, target, inputs, none"),
    ],
)
def test_what_cannot_be_built_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_model(ModelConfig(**{"vocab_size": 10, **given}))
