"""Int4 weights: an eighth of the bytes of fp32, multiplied as the int8 numbers that they dequantize to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.huge_pages import alloc_huge_pages
from polyhead.kernels.int_linear import INT8_MAX, divide_by_scale, make_int_linear, row_chunks
from polyhead.kernels.linear import PANEL

GROUP_SIZE = 32  # inputs of an output that share a group scale
_INT4_MIN, _INT4_MAX = -8, 7  # range of int4
MAX_GROUP_SCALE = INT8_MAX // -_INT4_MIN  # largest group scale whose products fit into 8 bits
_SCALE_OFFSETS = -1, 0, 1  # candidates around the scale that maps the largest weight of a group to -8


def make_int4_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Build x W^T + b in integers, W quantized to 4 bits and x to 8."""
    return make_int_linear(Int4(weight), bias)


class Int4:
    """A matrix (N, K) quantized twice: rows to int8, then groups of 32 numbers to int4 times a group scale.

    The group scale is an integer too, so that all sums of products are integers (QServe: Lin et al., 2024,
    sec. 4.1, progressive quantization). Of three candidates the one with the least squared error is used; its
    sign maps the weight of largest magnitude to -8, which has no positive counterpart (as in llama.cpp's
    Q4_0). The largest weight of a row would need a group scale that exceeds 8 bits, and shrinks by 6 %. Rows
    scaled to at most 120 would avoid this, but would round all other weights more coarsely (measured: no
    better).
    """

    dtype = "int4"

    def __init__(self, weight: Tensor) -> None:
        rows, inputs = weight.shape
        groups = -(-inputs // GROUP_SIZE)
        self.steps = groups * GROUP_SIZE // 4
        self.scales = torch.empty(rows)
        self.int4_values = torch.empty(rows, groups, GROUP_SIZE, dtype=torch.int8)
        self.group_scales = torch.empty(rows, groups, 1, dtype=torch.int8)
        for rows_slice in row_chunks(weight):
            x = weight.detach()[rows_slice].float()
            self.scales[rows_slice] = x.abs().amax(1) / INT8_MAX
            int8_values = divide_by_scale(x, self.scales[rows_slice, None])
            int8_values = (
                F.pad(int8_values, (0, -inputs % GROUP_SIZE)) if inputs % GROUP_SIZE else int8_values
            )
            self.int4_values[rows_slice], self.group_scales[rows_slice] = to_int4(
                int8_values.unflatten(1, (groups, GROUP_SIZE))
            )
        self.values = (self.int4_values * self.group_scales).flatten(1)[:, :inputs]

    def pack_panels(self) -> Tensor:
        """The kernel's layout: two numbers per byte; after each group the group scales of its 64 rows."""
        kernels, (rows, groups, _) = load_kernels(), self.int4_values.shape
        assert kernels is not None, "no kernel available"
        panels = alloc_huge_pages(-(-rows // PANEL) * PANEL * groups * (GROUP_SIZE // 2 + 1) // 4)
        kernels.pack_int4(
            self.int4_values.data_ptr(), self.group_scales.data_ptr(), panels.data_ptr(), rows, groups
        )
        return panels


def to_int4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize groups (..., 32) of -127 to 127 to int4 and a scale (..., 1); x is about their product."""
    low, high = x.aminmax(dim=-1, keepdim=True)
    nearest = torch.maximum(high, -low).div(-_INT4_MIN).ceil()
    factors = [
        (nearest + offset).clamp(1, MAX_GROUP_SCALE).copysign(low + high).neg() for offset in _SCALE_OFFSETS
    ]
    factor, least_error = factors[0], _rounding_error(x, factors[0])
    for candidate in factors[1:]:
        error = _rounding_error(x, candidate)
        factor, least_error = (
            torch.where(error < least_error, candidate, factor),
            torch.minimum(error, least_error),
        )
    return _round_to_int4(x, factor).to(torch.int8), factor.to(torch.int8)


def _round_to_int4(x: Tensor, factor: Tensor) -> Tensor:
    return (x / factor).round_().clamp_(_INT4_MIN, _INT4_MAX)


def _rounding_error(x: Tensor, factor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(_round_to_int4(x, factor).mul_(factor).sub_(x), dim=-1, keepdim=True)
