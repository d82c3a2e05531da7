"""The greatest numbers of rows, found in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.fast.native import WHOLE, kernels

MOST = 64  # that are looked for; more are found sooner by sorting


def best(x: Tensor, k: int, banned: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """As ``x.topk(k)`` over rows (N, V), with -inf at the columns in ``banned``; of equals the first comes first.

    In place of numbers that are -inf or NaN stands -inf, at some column.
    """
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous()
    found = kernels() if on_cpu and k <= MOST else None
    if found is None:
        x = x.index_fill(1, torch.tensor(banned, device=x.device), float("-inf")) if banned else x
        values, ids = x.topk(k)
        return values, ids
    values, ids = x.new_empty(len(x), k), torch.empty(len(x), k, dtype=torch.int64)
    not_these = (WHOLE * len(banned))(*banned)
    found.best_of(x.data_ptr(), *x.shape, k, not_these, len(banned), values.data_ptr(), ids.data_ptr())
    return values, ids
