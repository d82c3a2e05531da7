"""Shared by the tests of reading published checkpoints."""

import subprocess
import sys
from pathlib import Path

from tests.hf.families.causal_cases import LLAMA

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def rename_as_pickle(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")


def run_script(script: str, environment: dict[str, str], directory: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own, since huggingface_hub reads its settings once."""
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=environment, cwd=directory
    )


WITH_WINDOW = {**LLAMA, "head_dim": 8, "sliding_window": 4}
GEMMA2, GEMMA3 = ("Gemma2Config", WITH_WINDOW), ("Gemma3TextConfig", WITH_WINDOW)
SMOLLM = ("SmolLM3Config", {**LLAMA, "num_hidden_layers": 4})
OLMO = ("Olmo2Config", {**LLAMA, "rms_norm_eps": 1e-6, "num_key_value_heads": 4})
LOCAL_ROPE = {"rope_type": "default", "rope_theta": 2e4}
GLOBAL_ROPE = {"rope_type": "linear", "rope_theta": 9e5, "factor": 8.0}
LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
ROPES = {"sliding_attention": LOCAL_ROPE, "full_attention": GLOBAL_ROPE}
SCALED_GEMMA3 = (
    "Gemma3TextConfig",
    {**WITH_WINDOW, "num_hidden_layers": 3, "layer_types": LAYER_TYPES, "rope_parameters": ROPES},
)
