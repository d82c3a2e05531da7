"""Shared by the tests of flops."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 24,
    "max_len": 64,
}


def config_of(kind: str, changes: dict[str, Any]) -> ModelConfig:
    changes = {
        name: value for name, value in changes.items() if name != "decoder_block" or kind == "encoder-decoder"
    }
    return ModelConfig.model_validate({**SIZES, "kind": kind, **changes})
