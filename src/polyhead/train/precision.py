"""Which number format the matrix products of training use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["auto", "fp32", "bf16"]


def resolve(precision: Precision, device: torch.device) -> Literal["fp32", "bf16"]:
    """``auto`` is bf16 where the hardware multiplies it (AVX512-BF16, AMX, recent GPUs), else fp32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if fast else "fp32"


def autocast(precision: Literal["fp32", "bf16"], device: torch.device) -> AbstractContextManager[object]:
    """Weights stay fp32; the products inside the context run in the given format."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
