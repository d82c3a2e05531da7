"""Row maximum and logsumexp of logits, from which log-probabilities follow without a second (N, V) tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from polyhead.kernels.build_extension import load_kernels


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
