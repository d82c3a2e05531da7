"""Shared by the tests of gguf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from tests.export.conftest import made
from tests.hf.conftest import make
from tests.hf.families.causal_cases import CASES
from torch import Tensor

import polyhead as ph
from polyhead.run.run import Run

LIKE: dict[str, Any] = {
    "kind": "decoder", "position": "rope", "norm": "rmsnorm", "norm_first": True, "feed_forward": "swiglu",
    "scale_embedding": False, "attention": {"name": "softmax", "bias": False}, "n_layers": 2,
}  # fmt: skip

NANO: dict[str, Any] = {
    "kind": "decoder", "position": "learned", "norm": {"name": "layernorm", "bias": False},
        "norm_first": True,
    "attention": {"name": "softmax", "bias": False}, "feed_forward": {"name": "gelu", "bias": False,
        "tanh": True},
    "scale_embedding": False, "n_layers": 2,
}  # fmt: skip

GEMMA: dict[str, Any] = LIKE | {
    "norm": {"name": "rmsnorm", "zero_centered": True}, "feed_forward": {"name": "geglu", "tanh": True},
        "sandwich_norm": True,
    "scale_embedding": True, "n_layers": 3,
}  # fmt: skip

BARE = {"name": "softmax", "bias": False}

WINDOW = {"name": "softmax", "bias": False, "window": 4}

# our parts -> the architecture that runs them
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "as a recipe for plain text has it": ("llama", LIKE),
    "grouped, untied": ("llama", LIKE | {"n_kv_heads": 2, "tie_embeddings": "none", "head_dim": 10}),
    "all biases": ("llama", LIKE | {"attention": "softmax", "feed_forward": {"name": "swiglu",
        "bias": True}}),
    "scaled by numbers": ("llama", LIKE | {"head_dim": 8, "position": {
        "name": "rope", "scaling": "llama3", "theta": 100.0, "factor": 8.0, "original_len": 16}}),
    "scaled by yarn": ("llama", LIKE | {"head_dim": 8, "position": {
        "name": "rope", "scaling": "yarn", "theta": 100.0, "factor": 4.0, "original_len": 16}}),
    "embeddings scaled": ("granite", LIKE | {"scale_embedding": True, "logits_scale": 3.0,
        "residual_scale": 0.5}),
    "nanoGPT": ("gpt2", NANO),
    "some biases": ("gpt2", NANO | {"attention": {"name": "softmax", "bias": "qkv"}, "norm": "layernorm"}),
    "normalised": ("qwen3", LIKE | {"attention": {"name": "softmax", "bias": False, "qk_norm": True}}),
    "windows in turn": ("gemma2", GEMMA | {"attention": {**BARE, "softcap": 2.0}, "logit_softcap": 3.0,
        "layer_pattern": [
        {"attention": {**WINDOW, "softcap": 2.0}}, {}]}),
    "windows, and two ropes": ("gemma3", GEMMA | {"attention": {**BARE, "qk_norm": "zero_centered"},
        "layer_pattern": [
        {"attention": {**WINDOW, "qk_norm": "zero_centered"}, "position": {"name": "rope", "theta": 50.0}},
            {}]}),
    "a part turns": ("phi3", LIKE | {"position": {"name": "rope", "fraction": 0.5}, "head_dim": None,
        "d_model": 32}),
    "one head of keys": ("starcoder", NANO | {"n_kv_heads": 1}),
    "penalties of distance, no biases": ("mpt", NANO | {"position": "alibi", "n_heads": 6, "d_ff": 96,
        "feed_forward": {"name": "gelu", "bias": False}}),
    "side by side": ("gptneox", NANO | {"block": "parallel", "position": "rope", "tie_embeddings": "none"}),
}  # fmt: skip

# those that llama.cpp has; the others have windows, activations, biases or scales that it has not
NUMBERS = {
    "llama": (0, 1, 3, 4), "gpt2": (0, 1), "mistral": (0,), "qwen2": (0, 1), "qwen3": (0, 2), "gemma": (0, 2),
    "gemma2": (0,), "gemma3_text": (0,), "phi3": (0,), "gpt_neox": (0, 1, 2, 3), "bloom": (0, 1, 2),
        "gpt_bigcode": (0, 1), "mpt": (0, 2), "starcoder2": (0, 2),
    "stablelm": (0, 1), "olmo2": (0,), "granite": (0, 1, 3), "smollm3": (0,), "arcee": (0,), "ernie4_5": (0,),
        "cohere": (0,),
}  # fmt: skip


def published(family: str, number: int, place: Path) -> Run:
    """A small random model of the reference implementation, opened here."""
    case = CASES[family][number]
    make(place / "theirs", case.config, **case.sizes)
    return ph.load(place / "theirs")


def language_model(**parts: Any) -> Run:
    run = made(**{**LIKE, **parts})
    run.model.eval()
    return run


def tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file as it is read there: rows and columns in our order."""
    return {
        one.name: torch.from_numpy(np.array(dequantize(one.data, one.tensor_type)))
        for one in gguf.GGUFReader(path / "model.gguf").tensors
    }


def settings(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path / "model.gguf").fields.items()}
