"""Shared by the tests of memory."""

from __future__ import annotations

from typing import Any

from polyhead.config.model import ModelConfig

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 16,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_ff": 24,
    "max_len": 64,
}


def config_of(kind: str, changes: dict[str, Any]) -> ModelConfig:
    return ModelConfig.model_validate({**SIZES, "kind": kind, **changes})
