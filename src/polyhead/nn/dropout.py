"""Dropout whose mask costs a quarter: one random byte an element instead of one float."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.errors import UserError

COARSEST = 1 / 32  # 8 of the 256 values of a byte


class Dropout(nn.Module):
    """Zero each element with probability p, scale the rest by 1 / (1 - p) (Srivastava et al., 2014).

    On a CPU p is rounded to the nearest 1/256, so that eight draws come from one 64-bit random number; the scale uses
    the rounded rate, so the expectation is exact. Below 1/32 and above 31/32 that could change how much is dropped,
    or kept, by more than a sixteenth, so p is exact there, as on other devices, at one random float an element.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UserError(f"dropout is a probability from 0 to below 1, not {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or min(self.p, 1 - self.p) < COARSEST:
            return F.dropout(x, self.p)
        threshold = round(self.p * 256)
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
        # random_() with no bounds leaves the sign bit 0, so draw from the full range
        drawn = words.random_(-(2**63), None).view(torch.uint8)[: x.numel()].view(x.shape)
        return _Masked.apply(x, drawn >= threshold, 256 / (256 - threshold))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Masked(torch.autograd.Function):
    """x * kept * scale, remembering one byte an element."""

    @staticmethod
    def forward(ctx, x: Tensor, kept: Tensor, scale: float) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return (x * scale).mul_(kept)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        (kept,) = ctx.saved_tensors
        return (grad * ctx.scale).mul_(kept), None, None
