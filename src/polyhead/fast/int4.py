"""Weights of 4 bits: an eighth of the bytes of fp32, multiplied as the whole numbers of 8 bits that they stand for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.fast.large_pages import in_large_pages
from polyhead.fast.linear import PANEL
from polyhead.fast.native import kernels
from polyhead.fast.whole import MOST, in_sizes, some_rows, whole_product

GROUP = 32  # inputs of an output that share a factor
LEAST, GREATEST = -8, 7  # of what 4 bits hold
FACTORS = MOST // -LEAST  # the greatest factor: products fit into 8 bits
TRIED = -1, 0, 1  # beside the factor by which the largest weight of a group becomes -8


def int4_product(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """x W^T + b in whole numbers, W rounded to 4 bits and x to 8."""
    return whole_product(Int4(weight), bias)


class Int4:
    """A matrix (N, K) rounded twice: each row to whole numbers of 8 bits, and 32 of those at a time to 4 bits times a factor.

    The factor is a whole number too, so that all sums of products are (QServe: Lin et al., 2024, sec. 4.1, progressive
    quantization); of three it is the one that leaves the least squared error, and its sign lets the largest weight
    of the 32 be -8, of which there is no opposite (as in llama.cpp's Q4_0). The largest of a whole row would need a factor that 8 bits have
    no room for, and shrinks by 6 %: with rows up to 120 it would not, and all others would be rounded more coarsely (no better, measured).
    """

    dtype = "int4"

    def __init__(self, weight: Tensor) -> None:
        rows, inputs = weight.shape
        groups = -(-inputs // GROUP)
        self.steps = groups * GROUP // 4
        self.sizes = torch.empty(rows)
        self.fours = torch.empty(rows, groups, GROUP, dtype=torch.int8)
        self.factors = torch.empty(rows, groups, 1, dtype=torch.int8)
        for few in some_rows(weight):
            x = weight.detach()[few].float()
            self.sizes[few] = x.abs().amax(1) / MOST
            whole = in_sizes(x, self.sizes[few, None])
            whole = F.pad(whole, (0, -inputs % GROUP)) if inputs % GROUP else whole
            self.fours[few], self.factors[few] = in_fours(whole.unflatten(1, (groups, GROUP)))
        self.numbers = (self.fours * self.factors).flatten(1)[:, :inputs]

    def panels(self) -> Tensor:
        """What the kernel reads: two numbers a byte, and the factors of 64 rows behind each group of those."""
        found, (rows, groups, _) = kernels(), self.fours.shape
        assert found is not None, "there is no kernel"
        panels = in_large_pages(-(-rows // PANEL) * PANEL * groups * (GROUP // 2 + 1) // 4)
        found.pack_int4(self.fours.data_ptr(), self.factors.data_ptr(), panels.data_ptr(), rows, groups)
        return panels


def in_fours(x: Tensor) -> tuple[Tensor, Tensor]:
    """Groups (..., 32) of numbers from -127 to 127 as numbers of 4 bits, and the factor (..., 1): x is about their product."""
    low, high = x.aminmax(dim=-1, keepdim=True)
    nearest = torch.maximum(high, -low).div(-LEAST).ceil()
    factors = [(nearest + more).clamp(1, FACTORS).copysign(low + high).neg() for more in TRIED]
    factor, least = factors[0], _off(x, factors[0])
    for one in factors[1:]:
        off = _off(x, one)
        factor, least = torch.where(off < least, one, factor), torch.minimum(off, least)
    return _fours(x, factor).to(torch.int8), factor.to(torch.int8)


def _fours(x: Tensor, factor: Tensor) -> Tensor:
    return (x / factor).round_().clamp_(LEAST, GREATEST)


def _off(x: Tensor, factor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(_fours(x, factor).mul_(factor).sub_(x), dim=-1, keepdim=True)
