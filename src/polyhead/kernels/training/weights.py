"""Copies of weights in the dtype of the products of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyhead.nn.precision import product_dtype


class WeightCopies:
    """Weights as the products of a batch read them, made once.

    They serve the forward pass, the recomputation and the backward pass of one batch. They do not outlive it,
    because sharded training replaces the contents of a weight without a new version.
    """

    def __init__(self) -> None:
        self._copies: dict[object, tuple[tuple[Tensor, ...], Tensor]] = {}  # weights are kept: ids are unique

    def get(self, *weights: Tensor) -> Tensor:
        """Weights (N, K) below one another in the dtype of the products: (sum of N, K), without gradient."""
        dtype = product_dtype(weights[0])
        key = (dtype, tuple(map(id, weights)))
        if key not in self._copies:
            self._copies[key] = weights, _cat_rows(weights, dtype)
        return self._copies[key][1]


def _cat_rows(weights: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    rows = [weight.detach() for weight in weights]
    if len(rows) == 1:
        return rows[0].to(dtype)
    out = torch.empty(sum(map(len, rows)), *rows[0].shape[1:], dtype=dtype)
    for part, row in zip(out.split([len(row) for row in rows]), rows, strict=True):
        part.copy_(row)
    return out


def join_biases(maps: Sequence[nn.Linear]) -> Tensor | None:
    """The biases of maps that are one product, in fp32, without gradient."""
    biases = [linear.bias.detach() for linear in maps if linear.bias is not None]
    return torch.cat(biases) if len(biases) > 1 else biases[0] if biases else None
