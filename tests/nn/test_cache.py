import pytest
import torch
from tests.nn.model_helpers import ENCODER_SIZES, TOKENS

from polyhead import ModelConfig, build
from polyhead.cache.factory import make_cache

LINEAR, SOFTMAX = {"attention": "linear"}, {"attention": "softmax"}
SQUARE = {"attention": {"name": "linear", "feature_map": "square"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_pattern": [LINEAR, SOFTMAX], "decoder_attention": "softmax"},
        {"kind": "decoder", "n_layers": 1, "layer_pattern": [LINEAR, SOFTMAX]},
        {"kind": "decoder", "attention": "linear", "layer_pattern": [{}, LINEAR]},
        {"kind": "decoder", "layer_pattern": [LINEAR, SOFTMAX]},
        {"kind": "decoder", "layer_pattern": [LINEAR, SQUARE]},
        {"kind": "decoder", "layer_pattern": [{"block": "lstm"}, {"block": "gru"}], "position": "none"},
        {"layer_pattern": [LINEAR, SOFTMAX]},
        {"layer_pattern": [{"block": "gated_conv"}, {}], "decoder_block": "transformer"},
    ],
    ids=str,
)
def test_layers_may_have_different_caches(changes):
    model = build(ModelConfig(**{**ENCODER_SIZES, "kind": "encoder-decoder", **changes}), seed=1).eval()
    target = torch.tensor([[3, 4, 5, 6]])
    has_source = model.config.kind == "encoder-decoder"
    memory = model.encode(TOKENS[:1]) if has_source else None
    cache = make_cache(None, model.cache_shape, 1, 4)
    expected = model(TOKENS[:1], target) if has_source else model(target)
    with torch.inference_mode():
        for t in range(4):
            pos = torch.tensor([[t]])
            cache.prepare_step([0], pos)
            step = model.decode(target[:, t : t + 1], pos, cache, memory)
            torch.testing.assert_close(step[:, 0], expected[:, t])
