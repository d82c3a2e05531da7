"""Linear layers whose products are of whole numbers: of rounded weights, and of each row of x, rounded when it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.fast.linear import PANEL
from polyhead.fast.native import SUFFIX, kernels

AT_ONCE = 2**17  # weights that are rounded together: they stay near
MOST = 127  # the greatest whole number; -128 is not used, so that there are as many below 0 as above


class Rounded(Protocol):
    """A matrix of whole numbers: row n is about the real one where it is multiplied by size n."""

    dtype: str  # how it is kept
    numbers: Tensor  # (N, K) int8
    sizes: Tensor  # (N,)
    steps: int  # of a product with it, each of four inputs

    def panels(self) -> Tensor:
        """As the kernel reads it: 64 rows and then the next ones."""


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (..., K) as whole numbers from -127 to 127, and the size (..., 1) of 1: x is about their product."""
    low, high = x.aminmax(dim=-1, keepdim=True)
    size = torch.maximum(high, -low) / MOST
    return in_sizes(x, size).round_().clamp_(-MOST, MOST).to(torch.int8), size


def in_sizes(x: Tensor, size: Tensor) -> Tensor:
    """x / size, and 0 where that is no number."""
    quotient = x / torch.where(size == 0, 1, size)
    return quotient if size.isfinite().all() else quotient.nan_to_num_(0.0, 0.0, 0.0)


def some_rows(x: Tensor) -> Iterator[slice]:
    """The rows of a matrix, a few at a time."""
    few = max(1, AT_ONCE // max(1, x.size(1)))
    return (slice(first, first + few) for first in range(0, len(x), few))


def whole_product(weight: Rounded, bias: Tensor | None) -> WholeLinear | PlainWholeLinear:
    """x W^T + b by our kernel where it can be had."""
    return PlainWholeLinear(weight, bias) if kernels() is None else WholeLinear(weight, bias)


class WholeLinear(nn.Module):
    """x W^T + b. Sums of products are exact, and sizes and bias are fp32. An x that is not finite gives NaN."""

    def __init__(self, weight: Rounded, bias: Tensor | None) -> None:
        super().__init__()
        found, (self.width, self.inputs) = kernels(), weight.numbers.shape
        assert found is not None, "there is no kernel"
        self.dtype, self.steps, self.panels = weight.dtype, weight.steps, weight.panels()
        more = -self.width % PANEL
        self.sizes = F.pad(weight.sizes, (0, more))
        # kernels read x without a sign, by 128 too large
        few = (weight.numbers[rows].int().sum(1, dtype=torch.int32) for rows in some_rows(weight.numbers))
        self.offsets = F.pad(128 * torch.cat([*few]), (0, more))
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.at = (
            self.panels.data_ptr(),
            self.sizes.data_ptr(),
            self.offsets.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
        )
        self.run = {
            dtype: getattr(found, f"linear_{self.dtype}_{suffix}") for dtype, suffix in SUFFIX.items()
        }

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return self.part(x, 0, self.width)

    def part(self, x: Tensor, first: int, end: int) -> Tensor:
        """Only outputs from ``first``, the beginning of a panel, to ``end``: (..., K) -> (..., end - first)."""
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], end - first))
        panels, sizes, offsets, bias = self.at
        before = self.panels.nbytes * first // len(self.sizes)
        self.run[x.dtype](
            x.data_ptr(), panels + before, sizes + first * 4, offsets + first * 4,
            None if bias is None else bias + first * 4, out.data_ptr(), x.numel() // self.inputs, end - first, self.inputs,
        )  # fmt: skip
        return out

    def __deepcopy__(self, memo: object) -> WholeLinear:
        return self  # it never changes


class PlainWholeLinear(nn.Module):
    """The same by torch's product of whole numbers."""

    def __init__(self, weight: Rounded, bias: Tensor | None) -> None:
        super().__init__()
        # a copy in any case: of one input the strides would be (1, 1), and torch then multiplies other numbers
        self.weight = weight.numbers.T.clone(memory_format=torch.contiguous_format)
        self.dtype, self.sizes = weight.dtype, weight.sizes
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        whole, size = rounded(x.float().flatten(0, -2))
        sums = torch._int_mm(whole, self.weight) * (size * self.sizes)
        out = sums if self.bias is None else sums + self.bias
        return out.view(*x.shape[:-1], -1).to(x.dtype)
