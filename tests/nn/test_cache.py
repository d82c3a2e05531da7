"""Tests of nn/cache.py."""

from __future__ import annotations

import pytest
import torch
from tests.models.encoders_helpers import SIZES

from polyhead.cache.factory import make_cache
from polyhead.config.model import ModelConfig
from polyhead.models import build

TOKENS = torch.tensor([[4, 7, 2, 9, 5], [3, 6, 8, 1, 1]])

HYBRID = [{"attention": "linear"}, {"attention": "softmax"}]

SQUARED = {"name": "linear", "feature_map": "square"}


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_pattern": HYBRID},
        {"kind": "encoder-decoder", "layer_pattern": HYBRID, "decoder_attention": "softmax"},
        {"kind": "decoder", "n_layers": 1, "layer_pattern": HYBRID},
        {"kind": "decoder", "attention": "linear", "layer_pattern": [{}, {"attention": "linear"}]},
        {"kind": "decoder", "layer_pattern": HYBRID},
        {"kind": "decoder", "layer_pattern": [HYBRID[0], {"attention": SQUARED}]},
        {"kind": "decoder", "layer_pattern": [{"block": "lstm"}, {"block": "gru"}], "position": "none"},
        {"kind": "encoder-decoder", "layer_pattern": HYBRID},
        {
            "kind": "encoder-decoder",
            "layer_pattern": [{"block": "gated_conv"}, {}],
            "decoder_block": "transformer",
        },
    ],
    ids=str,
)
def test_layers_in_turn_may_differ_in_what_they_remember(changes):
    model = build(ModelConfig(**{**SIZES, **changes}), seed=1).eval()
    if model.config.kind == "encoder":
        assert [type(layer.attn).__name__ for layer in model.encoder.stack.layers][:2] == [
            "LinearAttention",
            "Attention",
        ]
        return
    target = torch.tensor([[3, 4, 5, 6]])
    memory = model.encode(TOKENS[:1]) if model.config.kind == "encoder-decoder" else None
    cache = make_cache(None, model.cache_shape, 1, 4)
    whole = model(target) if memory is None else model(TOKENS[:1], target)
    with torch.inference_mode():
        for t in range(4):
            pos = torch.tensor([[t]])
            cache.prepare_step([0], pos)
            step = model.decode(target[:, t : t + 1], pos, cache, memory)
            torch.testing.assert_close(step[:, 0], whole[:, t])
