import pytest
from tests.nn.model_helpers import ENCODER_SIZES

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.nn.validate_model import check_model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_pattern": [{"position": "learned"}]}, "acts on the embeddings"),
        ({"layer_pattern": [{"attention": "sofmax"}]}, "softmax"),
        ({"layer_pattern": [{"block": "lstn"}]}, r"pattern\[0\].block: unknown block 'lstn'; .* 'lstm'"),
        ({"kind": "decoder", "layer_pattern": [{"block": "lstm", "attention": "linear"}, {}]},
         "layer_pattern: block 'lstm' has no self-attention and ignores attention 'linear': remove it"),
        ({"layer_pattern": [{}, {"block": "gated_conv", "position": "rope"}]},
         "layer_pattern: block 'gated_conv' has no self-attention and ignores position 'rope': remove it"),
        ({"kind": "decoder", "block": "lstm", "attention": "linear"},
         "no layer uses attention 'linear', since the blocks are lstm: remove it"),
        ({"kind": "decoder", "attention": "linear",
          "layer_pattern": [{"block": "lstm"}, {"attention": "kernel"}]},
         "attention 'linear', since the blocks are lstm and transformer: remove it"),
        ({"block": "gated_conv", "attention": {"name": "softmax", "window": 4}},
         "attention 'softmax', since the blocks are gated_conv"),
        ({"kind": "encoder-decoder", "block": "gru", "cross_attention": "softmax", "attention": "linear"},
         "attention 'linear', since the blocks are gru"),
        ({"kind": "encoder-decoder", "block": {"name": "gru", "attention": False}, "attention": "linear"},
         "attention 'linear', since the blocks are gru"),
        ({"kind": "decoder", "position": "rope", "layer_pattern": [{"block": "lstm"}, {"position": "alibi"}]},
         "position 'rope' acts on self-attention, but blocks lstm have none"),
        ({"block": "lstm", "position": "none", "norm_first": True, "embedding_norm": "first"},
         "replaces a norm before attention; block 'lstm' has none: set true or false"),
        ({"embedding_norm": "first"}, "norm_first=true"),
        ({"kind": "decoder", "lm_head": False}, "head=false"),
        ({"kind": "decoder", "labels": ["a"]}, "encoder"),
        ({"kind": "decoder", "pooling": "mean"}, "pooling .* this is kind='decoder': remove it"),
        ({"kind": "encoder-decoder", "pooling": "first"}, "this is kind='encoder-decoder': remove it"),
        ({"labels": ["a", "a"]}, "two labels are equal"),
        ({"labels": ["a"], "pooling": {"name": "mean", "norm": True}}, "activation"),
    ],
)  # fmt: skip
def test_invalid_config_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_model(ModelConfig(**{**ENCODER_SIZES, **changes}))
