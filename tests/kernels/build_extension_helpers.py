"""Shared by the tests of build_extension."""

from __future__ import annotations

import pytest
import torch

from polyhead.kernels import build_extension
from polyhead.models import preset_config

# the condition is a string, so it is evaluated when a test starts, not at collection
needs_kernels = pytest.mark.skipif(
    "__import__('polyhead.kernels.build_extension').kernels.build_extension.load_kernels() is None",
    reason="kernels are not used here; 'polyhead env' names the reason",
)

PRECISIONS = pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"]
)


def clear_kernels() -> None:
    """The next use of kernels loads them again."""
    build_extension.kernels_status.cache_clear()
    build_extension._load_once.cache_clear()


def close(found, wanted, near, terms=None):
    """Equal within rounding, which grows with the terms of a sum: those of a sum near zero are not."""
    size = wanted if terms is None else terms
    torch.testing.assert_close(found.double(), wanted, rtol=near, atol=near * float(size.abs().max()))


CONFIGS = {
    "grouped": preset_config("tiny", 97, n_layers=2, d_model=128, n_heads=4, n_kv_heads=2, max_len=48),
    "rope": preset_config("gpt2", 97, n_layers=2, d_model=128, n_heads=4, position="rope",
        attention={"name": "softmax", "qk_norm": True, "window": 5}),
    "learned": preset_config("gpt2", 97, n_layers=2, d_model=128, n_heads=2, attention={"name": "softmax",
        "bias": False, "scale": 0.3}),
}  # fmt: skip
