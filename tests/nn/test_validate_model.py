"""Tests of nn/validate_model.py."""

from __future__ import annotations

import pytest
from tests.models.encoders_helpers import SIZES

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.nn.validate_model import check_model


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_pattern": [{"position": "learned"}]}, "acts on the embeddings"),
        ({"layer_pattern": [{"attention": "sofmax"}]}, "softmax"),
        (
            {"layer_pattern": [{"block": "lstn"}]},
            r"pattern\[0\].block: unknown block 'lstn'; did you mean 'lstm'",
        ),
        (
            {"kind": "decoder", "layer_pattern": [{"block": "lstm", "attention": "linear"}, {}]},
            "layer_pattern: block 'lstm' has no self-attention and ignores attention 'linear': remove it",
        ),
        (
            {"layer_pattern": [{}, {"block": "gated_conv", "position": "rope"}]},
            "layer_pattern: block 'gated_conv' has no self-attention and ignores position 'rope': remove it",
        ),
        (
            {"kind": "decoder", "block": "lstm", "attention": "linear"},
            "no layer uses attention 'linear', since the blocks are lstm: remove it",
        ),
        (
            {
                "kind": "decoder",
                "attention": "linear",
                "layer_pattern": [{"block": "lstm"}, {"attention": "kernel"}],
            },
            "attention 'linear', since the blocks are lstm and transformer: remove it",
        ),
        (
            {"block": "gated_conv", "attention": {"name": "softmax", "window": 4}},
            "attention 'softmax', since the blocks are gated_conv",
        ),
        (
            {"kind": "encoder-decoder", "block": "gru", "cross_attention": "softmax", "attention": "linear"},
            "attention 'linear', since the blocks are gru",
        ),
        (
            {"kind": "encoder-decoder", "block": {"name": "gru", "attention": False}, "attention": "linear"},
            "attention 'linear', since the blocks are gru",
        ),
        (
            {
                "kind": "decoder",
                "position": "rope",
                "layer_pattern": [{"block": "lstm"}, {"position": "alibi"}],
            },
            "position 'rope' acts on self-attention, but blocks lstm have none",
        ),
        (
            {"block": "lstm", "position": "none", "norm_first": True, "embedding_norm": "first"},
            "replaces a norm before attention; block 'lstm' has none: set true or false",
        ),
        ({"embedding_norm": "first"}, "norm_first=true"),
        ({"kind": "decoder", "lm_head": False}, "head=false"),
        ({"kind": "decoder", "labels": ["a"]}, "encoder"),
        ({"kind": "decoder", "pooling": "mean"}, "pooling .* this is kind='decoder': remove it"),
        ({"kind": "encoder-decoder", "pooling": "first"}, "this is kind='encoder-decoder': remove it"),
        ({"labels": ["a", "a"]}, "two labels are equal"),
        ({"labels": ["a"], "pooling": {"name": "mean", "norm": True}}, "activation"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_config_is_read(changes, said):
    with pytest.raises(UserError, match=said):
        check_model(ModelConfig(**{**SIZES, **changes}))
