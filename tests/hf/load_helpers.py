"""Shared by the tests of load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def edited(name: str, **values: Any) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        path = directory / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        found = load_file(directory / WEIGHTS)
        change(found)
        save_file(found, directory / WEIGHTS)

    return spoil


def pickled(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")


def ran(script: str, environment: dict[str, str], place: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own, since huggingface_hub reads its settings once."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, cwd=place)


LLAMA = {
    "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip

GEMMA3 = ("Gemma3TextConfig", {**LLAMA, "head_dim": 8, "sliding_window": 4})

SMOLLM = ("SmolLM3Config", {**LLAMA, "num_hidden_layers": 4})

OLMO = ("Olmo2Config", {**LLAMA, "rms_norm_eps": 1e-6, "num_key_value_heads": 4})

LOCAL_2, GLOBAL_9 = (
    {"rope_type": "default", "rope_theta": 2e4},
    {"rope_type": "linear", "rope_theta": 9e5, "factor": 8.0},
)

SCALED = ("Gemma3TextConfig", {**LLAMA, "head_dim": 8, "sliding_window": 4, "num_hidden_layers": 3,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
          "rope_parameters": {"sliding_attention": LOCAL_2, "full_attention": GLOBAL_9}})  # fmt: skip
