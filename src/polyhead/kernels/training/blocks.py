"""Calls of the kernels that compute a residual by blocks of rows, which stay in the cache (train_blocks.hpp).

They are faster than a product of a library for each weight, where weights are small.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.kernels.build_extension import DTYPE_SUFFIX, INT64, POINTER, load_kernels
from polyhead.kernels.training.elementwise import FLOAT, Drop, Norm, address

_LANES = 16  # widths must be multiples of this
_MAX_WEIGHT = 2**18  # elements of a weight; larger ones leave the cache, and so do their gradients


class BlockInput(NamedTuple):
    """What the first product of a residual reads: the norm of x, or rows that are given."""

    norm: Norm
    x: Tensor | None  # (R, C) fp32; None in a backward pass that has ``product_rows``
    product_rows: Tensor | None  # (R, C) in the dtype of the products; None if they are the norm of x
    weight: Tensor | None  # of the norm
    bias: Tensor | None

    @classmethod
    def of(
        cls,
        x: Tensor,
        norm: Norm,
        norm_first: bool,
        weight: Tensor | None,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> BlockInput:
        """The input of a residual, (B, T, C) in fp32, whose norm comes first or last."""
        rows = x.reshape(-1, x.size(-1)).contiguous()
        has_norm = norm_first and norm.is_centred is not None
        return cls(norm, rows, None if has_norm else rows.to(dtype), weight, bias)

    def list_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors that a backward pass needs."""
        return (self.x if self.product_rows is None else None), self.product_rows, self.weight, self.bias

    @property
    def n_rows(self) -> int:
        """R."""
        x = self.x if self.product_rows is None else self.product_rows
        assert x is not None
        return len(x)

    def compute_rows(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """The rows (R, C) in the dtype of the products, and statistics of the norm if there is one."""
        if self.product_rows is not None:
            return self.product_rows, None
        assert self.x is not None
        return self.norm.forward(self.x, self.weight, self.bias, dtype)

    def gradient(
        self, d_rows: Tensor, residual: Tensor, stats: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of x, of the norm's weight and of its bias, from those of the rows and the residual."""
        if self.product_rows is not None:
            return Drop(None)(residual, d_rows, None), None, None
        assert self.x is not None and stats is not None
        return self.norm.backward(d_rows, self.x, stats, self.weight, residual)


class _Input(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ["x", "product_rows", "weight", "bias", "stats"]),
        *((name, INT64) for name in ["C", "is_centred"]),
        *((name, FLOAT) for name in ["shift", "eps"]),
    ]


class _Drop(ctypes.Structure):
    _fields_ = [("bytes", POINTER), ("threshold", INT64), ("scale", ctypes.c_double)]


class LinearCall(ctypes.Structure):
    """The struct of the same name in train_blocks.hpp."""

    _fields_ = [
        ("input", _Input),
        ("drop", _Drop),
        *((name, POINTER) for name in ["weight", "bias", "y", "dy", "grad", "dx", "d_weight", "d_sums"]),
        *((name, INT64) for name in ["R", "N"]),
    ]


class FeedForwardCall(ctypes.Structure):
    """The struct of the same name in train_blocks.hpp."""

    _fields_ = [
        ("input", _Input),
        ("inner", _Drop),
        ("outer", _Drop),
        *((name, POINTER) for name in ["up", "down", "up_bias", "down_bias", "hidden", "out", "grad"]),
        *((name, POINTER) for name in ["d_up", "d_down", "d_sums"]),
        *((name, INT64) for name in ["R", "F", "activation", "is_gated"]),
        ("slope", ctypes.c_double),
    ]


def fits_blocks(*weights: Tensor) -> bool:
    """Whether the kernels take these weights, and could be faster."""
    return all(
        weight.numel() <= _MAX_WEIGHT and all(size % _LANES == 0 for size in weight.shape)
        for weight in weights
    )


def describe_input(rows: BlockInput, width: int, stats: Tensor | None = None) -> _Input:
    """The input as a kernel takes it."""
    norm, *tensors = rows
    pointers = map(address, (*tensors, stats))
    return _Input(*pointers, width, bool(norm.is_centred), norm.shift, norm.eps)


def describe_drop(drop: Drop) -> _Drop:
    """A dropout as a kernel takes it."""
    return _Drop(*drop.pointers)


def run_blocks(name: str, dtype: torch.dtype, call: ctypes.Structure) -> None:
    """Call a kernel with products in a dtype."""
    getattr(load_kernels(), f"{name}_{DTYPE_SUFFIX[dtype]}")(ctypes.byref(call))
