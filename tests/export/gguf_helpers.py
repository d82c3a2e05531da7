"""Shared by the tests of GGUF files."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from tests.export.conftest import random_run
from tests.hf.tables import make_case
from torch import Tensor

import polyhead as ph
from polyhead.run.run import Run

NO_BIAS = {"name": "softmax", "bias": False}
WINDOW = NO_BIAS | {"window": 4}
LLAMA: dict[str, Any] = {"kind": "decoder", "position": "rope", "norm": "rmsnorm", "norm_first": True}
LLAMA |= {"feed_forward": "swiglu", "scale_embedding": False, "attention": NO_BIAS, "n_layers": 2}
NANO = LLAMA | {"position": "learned", "norm": {"name": "layernorm", "bias": False}}
NANO |= {"feed_forward": {"name": "gelu", "bias": False, "tanh": True}}
GEMMA = LLAMA | {"norm": {"name": "rmsnorm", "zero_centered": True}, "sandwich_norm": True, "n_layers": 3}
GEMMA |= {"feed_forward": {"name": "geglu", "tanh": True}, "scale_embedding": True}
ROPE = {"name": "rope", "theta": 100.0, "original_len": 16}
GEMMA2 = GEMMA | {"attention": NO_BIAS | {"softcap": 2.0}, "logit_softcap": 3.0}
GEMMA2 |= {"layer_pattern": [{"attention": WINDOW | {"softcap": 2.0}}, {}]}
LOCAL_LAYER = {"attention": WINDOW | {"qk_norm": "zero_centered"}}
LOCAL_LAYER |= {"position": {"name": "rope", "theta": 50.0}}
GEMMA3 = GEMMA | {"attention": NO_BIAS | {"qk_norm": "zero_centered"}, "layer_pattern": [LOCAL_LAYER, {}]}
ALIBI = {"position": "alibi", "n_heads": 6, "d_ff": 96, "feed_forward": {"name": "gelu", "bias": False}}
# our components by the architecture that runs them
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", LLAMA),
    "grouped": ("llama", LLAMA | {"n_kv_heads": 2, "tie_embeddings": "none", "head_dim": 10}),
    "biases": ("llama", LLAMA | {"attention": "softmax", "feed_forward": {"name": "swiglu", "bias": True}}),
    "llama3": ("llama", LLAMA | {"head_dim": 8, "position": ROPE | {"scaling": "llama3", "factor": 8.0}}),
    "yarn": ("llama", LLAMA | {"head_dim": 8, "position": ROPE | {"scaling": "yarn", "factor": 4.0}}),
    "granite": ("granite", LLAMA | {"scale_embedding": True, "logits_scale": 3.0, "residual_scale": 0.5}),
    "nanogpt": ("gpt2", NANO),
    "qkv bias": ("gpt2", NANO | {"attention": {"name": "softmax", "bias": "qkv"}, "norm": "layernorm"}),
    "qk_norm": ("qwen3", LLAMA | {"attention": NO_BIAS | {"qk_norm": True}}),
    "gemma2": ("gemma2", GEMMA2),
    "gemma3": ("gemma3", GEMMA3),
    "partial rope": ("phi3", LLAMA | {"position": {"name": "rope", "fraction": 0.5}, "d_model": 32}),
    "multi-query": ("starcoder", NANO | {"n_kv_heads": 1}),
    "alibi": ("mpt", NANO | ALIBI),
    "parallel": ("gptneox", NANO | {"block": "parallel", "position": "rope", "tie_embeddings": "none"}),
}
# rows of the families' tables that llama.cpp has; others have windows, activations or biases that it has not
FAMILY_ROWS = {
    **dict.fromkeys(("mistral", "gemma2", "gemma3_text", "phi3", "olmo2", "smollm3", "cohere"), (0,)),
    **dict.fromkeys(("arcee", "ernie4_5"), (0,)),
    **dict.fromkeys(("gpt2", "qwen2", "gpt_bigcode", "stablelm"), (0, 1)),
    **dict.fromkeys(("qwen3", "gemma", "mpt", "starcoder2"), (0, 2)),
    "llama": (0, 1, 3, 4),
    "gpt_neox": (0, 1, 2, 3),
    "bloom": (0, 1, 2),
    "granite": (0, 1, 3),
}


def published_run(family: str, number: int, directory: Path) -> Run:
    """A small random model of the reference implementation, opened here."""
    make_case(directory / "checkpoint", f"{family}-{number}")
    return ph.load(directory / "checkpoint")


def language_model(**parts: Any) -> Run:
    run = random_run(**{**LLAMA, **parts})
    run.model.eval()
    return run


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Every tensor of a file, with rows and columns in our order."""
    return {
        one.name: torch.from_numpy(np.array(dequantize(one.data, one.tensor_type)))
        for one in gguf.GGUFReader(directory / "model.gguf").tensors
    }


def tensor_types(directory: Path) -> dict[str, str]:
    return {one.name: one.tensor_type.name for one in gguf.GGUFReader(directory / "model.gguf").tensors}


def read_metadata(directory: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(directory / "model.gguf").fields
    return {name: field.contents() for name, field in fields.items()}
