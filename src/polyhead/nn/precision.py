"""Run operations in fp32 under autocast, for sums over a whole text."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Context manager that disables autocast; the meta device has none."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert to fp32, unless the dtype is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a linear map of x is computed: that of autocast, if it is enabled."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
