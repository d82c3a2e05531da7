"""Dropout with one random byte per element instead of one float, at a quarter of the cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.core.errors import UserError

_MIN_BYTE_RATE = 1 / 32  # 8 of the 256 values of a byte


class Dropout(nn.Module):
    """Zero each element with probability p, scale the rest by 1 / (1 - p) (Srivastava et al., 2014).

    On a CPU p is rounded to the nearest 1/256, so that one 64-bit random number gives eight samples; the
    scale uses the rounded rate, so the expectation is exact. Below 1/32 and above 31/32, where rounding could
    change the rate of dropped or of kept elements by more than a sixteenth, and on other devices, p is exact,
    at one random float per element.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UserError(f"dropout must be a probability from 0 to below 1, not {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or not self.draws_bytes:
            return F.dropout(x, self.p)
        keep_mask = draw_bytes(x.shape) >= self.threshold
        return _DropoutFunction.apply(x, keep_mask, 256 / (256 - self.threshold))

    @property
    def draws_bytes(self) -> bool:
        """Whether a byte per element is precise enough for the rate."""
        return min(self.p, 1 - self.p) >= _MIN_BYTE_RATE

    @property
    def threshold(self) -> int:
        """The number of values of a byte, of 256, for which an element is dropped."""
        return round(self.p * 256)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def draw_bytes(shape: Sequence[int]) -> Tensor:
    """Random bytes on the CPU, uint8."""
    n = math.prod(shape)
    # random_() with no bounds leaves the sign bit 0, so draw from the full range
    words = torch.empty((n + 7) // 8, dtype=torch.int64, device="cpu").random_(-(2**63), None)
    return words.view(torch.uint8)[:n].view(shape)


class _DropoutFunction(torch.autograd.Function):
    """x * keep_mask * scale, saving one byte per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep_mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep_mask)
        ctx.scale = scale
        return (x * scale).mul_(keep_mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (keep_mask,) = ctx.saved_tensors
        return (grad * ctx.scale).mul_(keep_mask), None, None
