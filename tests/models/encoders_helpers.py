"""A small encoder with random weights."""

from tests.generation.helpers import build_noisy

from polyhead.config.model import ModelConfig

SIZES = {"kind": "encoder", "vocab_size": 13, "d_model": 8, "n_heads": 2, "n_layers": 2, "max_len": 12}
SIZES["dropout"] = 0.0


def make_encoder(**changes):
    return build_noisy(ModelConfig(**{**SIZES, **changes}), 1, 0.3, 2)


made = make_encoder
