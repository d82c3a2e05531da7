"""Kernels over rows of logits: top-k in one pass, and maximum with logsumexp."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.kernels.build_extension import INT64, load_kernels

MAX_K = 64  # largest k of the kernel; for more, sorting is faster


def topk_rows(x: Tensor, k: int, banned_ids: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Like ``x.topk(k)`` on rows (N, V), with -inf at the columns ``banned_ids``; ties in column order.

    Numbers that are -inf or NaN are returned as -inf, with an arbitrary column id.
    """
    found = _run_topk("best_of", x, k, banned_ids)
    if found is not None:
        return found
    x = x.index_fill(1, torch.tensor(banned_ids, device=x.device), float("-inf")) if banned_ids else x
    values, ids = x.topk(k)
    return values, ids


def topk_log_softmax(x: Tensor, k: int, banned_ids: Sequence[int] = ()) -> tuple[Tensor, Tensor] | None:
    """``topk_rows`` with the numbers' log softmax over the whole row; None without kernels."""
    return _run_topk("best_log_probs", x, k, banned_ids)


def _run_topk(kernel: str, x: Tensor, k: int, banned_ids: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous()
    kernels = load_kernels() if on_cpu and k <= MAX_K else None
    if kernels is None:
        return None
    values, ids = x.new_empty(len(x), k), torch.empty(len(x), k, dtype=torch.int64)
    banned_array = (INT64 * len(banned_ids))(*banned_ids)
    getattr(kernels, kernel)(
        x.data_ptr(), *x.shape, k, banned_array, len(banned_ids), values.data_ptr(), ids.data_ptr()
    )
    return values, ids


def max_and_logsumexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum m and log Σ exp(x - m) of rows, (N, V) -> (N, 1) twice; log softmax is x minus both. fp32."""
    kernels = load_kernels() if x.device.type == "cpu" and x.is_contiguous() else None
    if kernels is None:
        row_max = x.amax(-1, keepdim=True)
        return row_max, (x - row_max).logsumexp(-1, keepdim=True)
    assert x.dtype == torch.float32, f"the kernel is for fp32, not {x.dtype}"
    out = x.new_empty(len(x), 2)
    kernels.log_sums(x.data_ptr(), out.data_ptr(), *x.shape)
    return out[:, :1], out[:, 1:]
