"""Configurations of our own encoders that a published family has."""

from typing import Any

from tests.hf.conftest import VOCABULARY

from polyhead import ModelConfig

SIZES = {"kind": "encoder", "d_model": 24, "n_heads": 3, "n_layers": 2, "max_len": 32}
NO_BIAS = {"name": "softmax", "bias": False}
TANH_GELU = {"name": "gelu", "tanh": True}
WINDOW_LAYER = {"attention": NO_BIAS | {"window": 4}, "position": {"name": "rope", "theta": 100.0}}

LIKE_BERT = SIZES | {"position": "learned", "n_segments": 2, "embedding_norm": True, "feed_forward": "gelu"}
LIKE_BERT |= {"scale_embedding": False, "lm_head_bias": True}
LIKE_ALBERT = LIKE_BERT | {"d_embedding": 10, "share_layers": True, "feed_forward": TANH_GELU}
LIKE_ALBERT |= {"head_transform_activation": "gelu_tanh"}
LIKE_NOMIC = LIKE_BERT | {"position": {"name": "rope", "theta": 1000.0}, "attention": NO_BIAS}
LIKE_NOMIC |= {"feed_forward": "swiglu", "head_transform_activation": "silu", "head_transform_bias": True}
LIKE_GTE = LIKE_NOMIC | {"attention": "softmax", "feed_forward": {"name": "geglu", "bias": "down"}}
LIKE_GTE |= {"head_transform_activation": "gelu", "head_transform_bias": None}
LIKE_EUROBERT = SIZES | {"position": "rope", "norm": "rmsnorm", "norm_first": True, "attention": NO_BIAS}
LIKE_EUROBERT |= {"feed_forward": "swiglu", "scale_embedding": False, "head_transform_activation": "none"}
LIKE_MODERNBERT = SIZES | {"n_layers": 3, "position": "rope", "layer_pattern": [{}, WINDOW_LAYER]}
LIKE_MODERNBERT |= {"attention": NO_BIAS, "embedding_norm": "first", "norm_first": True}
LIKE_MODERNBERT |= {"norm": {"name": "layernorm", "bias": False}, "feed_forward": "geglu"}
LIKE_MODERNBERT |= {"scale_embedding": False}


def model_config(**changes: Any) -> ModelConfig:
    return ModelConfig.model_validate({"vocab_size": VOCABULARY, **changes})
