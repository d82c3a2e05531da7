"""Sums over a whole text are kept in fp32, whatever the precision around them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def exactly(x: Tensor) -> AbstractContextManager[object]:
    """Within it autocast rounds nothing; there is none on the meta device."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def widened(x: Tensor) -> Tensor:
    """In fp32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
