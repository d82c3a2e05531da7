"""Linear layers with integer products: quantized weights, and inputs quantized row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.kernels.build_extension import DTYPE_SUFFIX, load_kernels
from polyhead.kernels.linear import PANEL
from polyhead.kernels.malloc_tuning import alloc_huge_pages


def make_int8_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Build x W^T + b in integers, W quantized to 8 bits."""
    if load_kernels() is None:
        return Int8LinearFallback(Int8(weight), bias)
    return Int8Linear(Int8Panels(weight), bias)


class Int8:
    """A matrix (N, K) quantized to integers from -127 to 127, with one scale per row.

    As LLM.int8() (Dettmers et al., 2022, sec. 2.1, vector-wise) without its outlier decomposition.
    """

    dtype = "int8"

    def __init__(self, weight: Tensor) -> None:
        self.values, self.scales = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
        self.sums, kernels = torch.empty(len(weight), dtype=torch.int32), load_kernels()
        for rows_slice in row_chunks(weight):
            rows = weight.detach()[rows_slice].float().contiguous()
            outputs = self.values[rows_slice], self.scales[rows_slice], self.sums[rows_slice]
            if kernels is not None:  # the same bits in a quarter of the time
                kernels.quantize_rows(rows.data_ptr(), *rows.shape, *(out.data_ptr() for out in outputs))
                continue
            values, scale = quantize_rows(rows)
            for out, result in zip(outputs, (values, scale[:, 0], sum_rows(values)), strict=True):
                out.copy_(result)
        self.shape, self.steps = weight.shape, -(-weight.size(1) // 4)

    def pack_panels(self) -> Tensor:
        """The weights in the layout of the kernel."""
        panels = alloc_huge_pages(-(-self.shape[0] // PANEL) * PANEL * self.steps)
        self.pack_into(panels)
        return panels

    def pack_into(self, panels: Tensor) -> None:
        """Write the weights to the start of ``panels``, in the layout of the kernel."""
        kernels, n_padding = load_kernels(), -self.shape[1] % 4
        assert kernels is not None, "no kernel available"
        padded = F.pad(self.values, (0, n_padding)) if n_padding else self.values
        kernels.pack(padded.data_ptr(), panels.data_ptr(), self.shape[0], self.steps)


class Int8Panels:
    """``Int8`` in the kernel's layout only: each chunk is packed while it is in the CPU cache."""

    dtype = "int8"

    def __init__(self, weight: Tensor) -> None:
        self.shape, self.steps = weight.shape, -(-weight.size(1) // 4)
        self.panels = alloc_huge_pages(-(-self.shape[0] // PANEL) * PANEL * self.steps)
        parts = []
        for rows in row_chunks(weight, PANEL):
            part = Int8(weight[rows])
            part.pack_into(self.panels[rows.start * self.steps :])
            parts.append((part.scales, part.sums))
        self.scales, self.sums = map(torch.cat, zip(*parts, strict=True))

    def pack_panels(self) -> Tensor:
        """The weights in the layout of the kernel."""
        return self.panels


INT8_MAX = 127  # largest int8; -128 is not used, so that the range is symmetric
GROUP_SIZE = 32  # inputs of an output that share a group scale
_INT4_MIN, _INT4_MAX = -8, 7  # range of int4
MAX_GROUP_SCALE = INT8_MAX // -_INT4_MIN  # largest group scale whose products fit into 8 bits
_SCALE_OFFSETS = -1, 0, 1  # candidates around the scale that maps the largest weight of a group to -8


def make_int4_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Build x W^T + b in integers, W quantized to 4 bits and x to 8."""
    return (Int8LinearFallback if load_kernels() is None else Int8Linear)(Int4(weight), bias)


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
        self.shape = weight.shape
        self.values = (self.int4_values * self.group_scales).flatten(1)[:, :inputs]
        self.sums = torch.cat([sum_rows(self.values[rows]) for rows in row_chunks(self.values)])

    def pack_panels(self) -> Tensor:
        """The kernel's layout: two numbers per byte; after each group the group scales of its 64 rows."""
        kernels, (rows, groups, _) = load_kernels(), self.int4_values.shape
        assert kernels is not None, "no kernel available"
        panels = alloc_huge_pages(-(-rows // PANEL) * PANEL * groups * (GROUP_SIZE // 2 + 1) // 4)
        kernels.pack_int4(
            self.int4_values.data_ptr(), self.group_scales.data_ptr(), panels.data_ptr(), rows, groups
        )
        return panels

    def to_bytes(self) -> Tensor:
        """(N, 17 K / 32 + 4) uint8, as ``nn/int4_linear.py`` unpacks it; K is a multiple of 32."""
        nibbles = (self.int4_values + -_INT4_MIN).view(torch.uint8)
        pairs = nibbles[..., : GROUP_SIZE // 2] | nibbles[..., GROUP_SIZE // 2 :] << 4
        groups = torch.cat((pairs, self.group_scales.view(torch.uint8)), -1)
        return torch.cat((groups.flatten(1), self.scales[:, None].view(torch.uint8)), 1)


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
        factor = torch.where(error < least_error, candidate, factor)
        least_error = torch.minimum(error, least_error)
    return _round_to_int4(x, factor).to(torch.int8), factor.to(torch.int8)


def _round_to_int4(x: Tensor, factor: Tensor) -> Tensor:
    return (x / factor).round_().clamp_(_INT4_MIN, _INT4_MAX)


def _rounding_error(x: Tensor, factor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(_round_to_int4(x, factor).mul_(factor).sub_(x), dim=-1, keepdim=True)


_CHUNK_WEIGHTS = 2**17  # weights quantized at once, which fit the CPU cache


class QuantizedRows(Protocol):
    """A quantized matrix: row n times scale n is about the original row."""

    dtype: str  # "int8" or "int4"
    shape: torch.Size  # (N, K)
    scales: Tensor  # (N,)
    sums: Tensor  # (N,) int32, of the values
    steps: int  # steps of a product with it, four inputs each

    def pack_panels(self) -> Tensor:
        """The matrix in the layout of the kernel: panels of 64 rows."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize rows (..., K) to integers from -127 to 127 and a scale (..., 1); x is about their product."""
    scale = x.abs().amax(-1, keepdim=True) / INT8_MAX
    return divide_by_scale(x, scale).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def divide_by_scale(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale, and 0 where that is not a finite number."""
    quotient = x / torch.where(scale == 0, 1, scale)
    return quotient if scale.isfinite().all() else quotient.nan_to_num_(0.0, 0.0, 0.0)


def sum_rows(values: Tensor) -> Tensor:
    """(N, K) int8 -> (N,) int32."""
    return values.int().sum(1, dtype=torch.int32)


def row_chunks(x: Tensor, multiple: int = 1) -> Iterator[slice]:
    """Slices of the rows of a matrix, in chunks of a multiple of rows that fit the CPU cache."""
    n_rows = max(1, _CHUNK_WEIGHTS // max(1, x.size(1) * multiple)) * multiple
    return (slice(start, start + n_rows) for start in range(0, len(x), n_rows))


class Int8Linear(nn.Module):
    """x W^T + b in integers: exact sums of products, fp32 scales and bias; a non-finite x gives NaN."""

    def __init__(self, weight: QuantizedRows, bias: Tensor | None) -> None:
        super().__init__()
        kernels, (self.out_features, self.in_features) = load_kernels(), weight.shape
        assert kernels is not None, "no kernel available"
        self.dtype, self.steps, self.panels = weight.dtype, weight.steps, weight.pack_panels()
        n_padding = -self.out_features % PANEL
        self.scales = F.pad(weight.scales, (0, n_padding))
        # the kernels read x as unsigned bytes, with 128 added
        self.offsets = F.pad(128 * weight.sums, (0, n_padding))
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.pointers = (
            self.panels.data_ptr(),
            self.scales.data_ptr(),
            self.offsets.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
        )
        self.kernels = {
            dtype: getattr(kernels, f"linear_{self.dtype}_{suffix}") for dtype, suffix in DTYPE_SUFFIX.items()
        }

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return self.forward_slice(x, 0, self.out_features)

    def forward_slice(self, x: Tensor, start: int, end: int) -> Tensor:
        """Only the outputs from ``start``, a panel's first, to ``end``: (..., K) -> (..., end - start)."""
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], end - start))
        panels, scales, offsets, bias = self.pointers
        byte_offset = self.panels.nbytes * start // len(self.scales)
        self.kernels[x.dtype](
            x.data_ptr(), panels + byte_offset, scales + start * 4, offsets + start * 4,
            None if bias is None else bias + start * 4, out.data_ptr(), x.numel() // self.in_features,
                end - start, self.in_features,
        )  # fmt: skip
        return out

    def __deepcopy__(self, memo: object) -> Int8Linear:
        return self  # immutable


class Int8LinearFallback(nn.Module):
    """The same layer with ``torch._int_mm``."""

    def __init__(self, weight: Int8 | Int4, bias: Tensor | None) -> None:
        super().__init__()
        # always a copy: with one input the strides would be (1, 1), and torch then computes a wrong product
        self.weight = weight.values.T.clone(memory_format=torch.contiguous_format)
        self.dtype, self.scales = weight.dtype, weight.scales
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        int_x, scale = quantize_rows(x.float().flatten(0, -2))
        sums = torch._int_mm(int_x, self.weight) * (scale * self.scales)
        out = sums if self.bias is None else sums + self.bias
        return out.view(*x.shape[:-1], -1).to(x.dtype)
