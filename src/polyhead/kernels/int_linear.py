"""Linear layers with integer products: quantized weights, and inputs quantized row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.kernels.build_extension import DTYPE_SUFFIX, load_kernels
from polyhead.kernels.linear import PANEL

_CHUNK_WEIGHTS = 2**17  # weights quantized at once, which fit the CPU cache
INT8_MAX = 127  # largest int8; -128 is not used, so that the range is symmetric


class QuantizedRows(Protocol):
    """A quantized matrix: row n times scale n is about the original row."""

    dtype: str  # "int8" or "int4"
    values: Tensor  # (N, K) int8
    scales: Tensor  # (N,)
    steps: int  # steps of a product with it, four inputs each

    def pack_panels(self) -> Tensor:
        """The matrix in the layout of the kernel: panels of 64 rows."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize rows (..., K) to integers from -127 to 127 and a scale (..., 1); x is about their product."""
    low, high = x.aminmax(dim=-1, keepdim=True)
    scale = torch.maximum(high, -low) / INT8_MAX
    return divide_by_scale(x, scale).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def divide_by_scale(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale, and 0 where that is not a finite number."""
    quotient = x / torch.where(scale == 0, 1, scale)
    return quotient if scale.isfinite().all() else quotient.nan_to_num_(0.0, 0.0, 0.0)


def row_chunks(x: Tensor) -> Iterator[slice]:
    """Slices of the rows of a matrix, in chunks that fit the CPU cache."""
    n_rows = max(1, _CHUNK_WEIGHTS // max(1, x.size(1)))
    return (slice(start, start + n_rows) for start in range(0, len(x), n_rows))


def make_int_linear(weight: QuantizedRows, bias: Tensor | None) -> Int8Linear | Int8LinearFallback:
    """Build x W^T + b with our kernel, or with torch's integer product if ours is not available."""
    return Int8LinearFallback(weight, bias) if load_kernels() is None else Int8Linear(weight, bias)


class Int8Linear(nn.Module):
    """x W^T + b in integers: exact sums of products, fp32 scales and bias; a non-finite x gives NaN."""

    def __init__(self, weight: QuantizedRows, bias: Tensor | None) -> None:
        super().__init__()
        kernels, (self.out_features, self.in_features) = load_kernels(), weight.values.shape
        assert kernels is not None, "no kernel available"
        self.dtype, self.steps, self.panels = weight.dtype, weight.steps, weight.pack_panels()
        n_padding = -self.out_features % PANEL
        self.scales = F.pad(weight.scales, (0, n_padding))
        # the kernels read x as unsigned bytes, with 128 added
        row_sums = (weight.values[rows].int().sum(1, dtype=torch.int32) for rows in row_chunks(weight.values))
        self.offsets = F.pad(128 * torch.cat([*row_sums]), (0, n_padding))
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

    def __init__(self, weight: QuantizedRows, bias: Tensor | None) -> None:
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
