"""Tests of config/config_constraints.py."""

import pytest

from polyhead import ModelConfig
from polyhead.nn.validate_model import check_model

SOFTMAX = {"name": "softmax"}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 100}, r"d_model \(100\) must be divisible by n_heads \(8\); the nearest is 96"),
        ({"d_model": 3, "n_heads": 8}, r"d_model \(3\) must be divisible by n_heads \(8\); the nearest is 8"),
        ({"d_model": 100, "n_kv_heads": 2}, "the nearest is 96; or give head_dim"),
        ({"n_kv_heads": 3}, r"n_kv_heads \(3\) must divide n_heads \(8\): one of 1, 2, 4, 8"),
        ({"n_kv_heads": 16}, r"n_kv_heads \(16\) must divide n_heads \(8\)"),
        ({"position": "ropee"}, "unknown position 'ropee'; did you mean 'rope'"),
        ({"norm": "layer_norm"}, "unknown norm 'layer_norm'; did you mean 'layernorm'"),
        ({"vocab_size": 0}, "greater than 0"),
        ({"head_dim": 0}, "greater than 0"),
        ({"sandwich_norm": True}, "sandwich_norm requires norm_first=true"),
        ({"norm_first": True, "sandwich_norm": "after", "embedding_norm": "first"}, "embedding_norm=first"),
        ({"norm_first": True, "sandwich_norm": "before"}, "sandwich_norm: 'before' is not true or false,"),
        ({"decoder_attention": "sofmax"}, "unknown attention 'sofmax'; did you mean 'softmax'"),
        ({"cross_attention": SOFTMAX | {"windo": 2}}, "attention 'softmax' has no option 'windo'; did you"),
        ({"decoder_block": "lstn"}, "unknown block 'lstn'; did you mean 'lstm'"),
        ({"attention": SOFTMAX | {"sink": 2}}, "sink is 2; it is the number of tokens seen beyond a window"),
        ({"attention": SOFTMAX | {"tie": "qk"}, "n_kv_heads": 2}, "as many key heads as query heads"),
        ({"attention": SOFTMAX | {"tie": "kv"}, "v_head_dim": 2}, "values as wide as keys: v_head_dim=64"),
        ({"cross_attention": SOFTMAX | {"softcap": 0}}, "softcap must be above 0"),
        ({"norm": {"name": "batchnorm", "momentum": 0}}, "momentum of batchnorm must be above 0"),
        ({"feed_forward": {"name": "conv1x1", "activation": "gleu"}}, "'gleu' is not .*; did you mean"),
        ({"dropout": 1.0}, "less than 1"),
        ({"d_modle": 3}, "d_modle"),
        ({"tie_embeddings": "some"}, "is not one of all, target, inputs, none"),
    ],
)
def test_invalid_config_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        check_model(ModelConfig(**{"vocab_size": 10, **fields}))
