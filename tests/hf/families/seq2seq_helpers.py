"""Configurations of our own encoder-decoders that a published family has."""

from typing import Any

HALVES = {"name": "sinusoidal", "layout": "halves"}
PRE_NORM = {"norm_first": True}
SEQ2SEQ: dict[str, Any] = {"d_model": 24, "n_heads": 3, "n_layers": 1, "n_decoder_layers": 2}
SEQ2SEQ |= {"max_len": 32, "dropout": 0.0}
LIKE_T5_SEQ2SEQ = SEQ2SEQ | PRE_NORM | {"position": "t5", "norm": {"name": "rmsnorm", "eps": 1e-6}}
LIKE_T5_SEQ2SEQ |= {"attention": {"name": "softmax", "scale": 1.0, "bias": False}, "logits_scale": True}
LIKE_T5_SEQ2SEQ |= {"feed_forward": {"name": "relu", "bias": False}, "scale_embedding": False}
