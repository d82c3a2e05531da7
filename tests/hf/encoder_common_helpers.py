"""Shared by the tests of encoder_common."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tests.hf.conftest import VOCABULARY
from tests.hf.families.encoders_cases import CASES, Case
from torch import Tensor

from polyhead import ModelConfig


def of(name: str, number: int) -> Case:
    return CASES[name][number]


def rewritten(directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    found = load_file(directory / "model.safetensors")
    change(found)
    save_file(found, directory / "model.safetensors")


def edited(path: Path, without: tuple[str, ...] = (), **values: Any) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in found.items() if key not in without} | values))


LIKE_BERT = {
    "kind": "encoder", "d_model": 24, "n_heads": 3, "n_layers": 2, "max_len": 32, "position": "learned",
    "n_segments": 2,
    "embedding_norm": True, "feed_forward": "gelu", "scale_embedding": False, "lm_head_bias": True,
}  # fmt: skip

LIKE_ALBERT = LIKE_BERT | {"d_embedding": 10, "share_layers": True, "feed_forward": {"name": "gelu",
    "tanh": True},
                           "head_transform_activation": "gelu_tanh"}  # fmt: skip

WINDOWED = {
    "attention": {"name": "softmax", "bias": False, "window": 4},
    "position": {"name": "rope", "theta": 100.0},
}

LIKE_MODERNBERT = {
    "kind": "encoder", "d_model": 24, "n_heads": 3, "n_layers": 3, "max_len": 32, "position": "rope",
    "layer_pattern": [{}, WINDOWED],
    "attention": {"name": "softmax", "bias": False}, "embedding_norm": "first", "norm": {"name": "layernorm",
        "bias": False},
    "norm_first": True, "feed_forward": "geglu", "scale_embedding": False,
}  # fmt: skip

LIKE_NOMIC = LIKE_BERT | {
    "position": {"name": "rope", "theta": 1000.0}, "attention": {"name": "softmax", "bias": False},
        "feed_forward": "swiglu",
    "head_transform_activation": "silu", "head_transform_bias": True,
}  # fmt: skip

LIKE_EUROBERT = {
    "kind": "encoder", "d_model": 24, "n_heads": 3, "n_layers": 2, "max_len": 32, "position": "rope",
    "norm": "rmsnorm",
    "norm_first": True, "attention": {"name": "softmax", "bias": False}, "feed_forward": "swiglu",
        "scale_embedding": False,
    "head_transform_activation": "none",
}  # fmt: skip

LIKE_GTE = LIKE_NOMIC | {
    "attention": "softmax", "feed_forward": {"name": "geglu", "bias": "down"},
        "head_transform_activation": "gelu", "head_transform_bias": None,
}  # fmt: skip


def own(**changes: Any) -> ModelConfig:
    return ModelConfig.model_validate({"vocab_size": VOCABULARY, **changes})
