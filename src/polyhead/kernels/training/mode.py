"""The mode of training on a CPU: which calls of a forward pass run in fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.onednn_matmul import OnednnProducts, mkl_without_avx512
from polyhead.kernels.training.attention import fuse_attend, fuse_attention
from polyhead.kernels.training.feed_forward import fuse_feed_forward
from polyhead.kernels.training.loss import fuse_cross_entropy
from polyhead.kernels.training.residual import MakeForm, WeightCopies, fuse_residual
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward
from polyhead.nn.kv import attend
from polyhead.nn.loss import cross_entropy
from polyhead.nn.override import replace_calls
from polyhead.nn.residual import Residual

SUBLAYERS: Mapping[type[nn.Module], MakeForm] = {
    Attention: fuse_attention,
    FeedForward: fuse_feed_forward,
    GatedFeedForward: fuse_feed_forward,
}
"""The fused residuals by type of sub-layer."""

FUSIONS: Mapping[Any, Callable[..., Any]] = {
    Residual.forward: partial(fuse_residual, SUBLAYERS),
    attend: fuse_attend,
    cross_entropy: fuse_cross_entropy,
}
"""The fused forms of functions that are overridable: (copies, *arguments) -> the result, or None."""


@contextmanager
def training_kernels() -> Iterator[None]:
    """Context of a forward pass with gradients on the CPU, in which what has a fused form runs in it.

    Everything else runs as it would without the context: layers that are compiled or exported, other devices
    and dtypes, passes without gradients, modules with hooks and weights that are no plain parameters. It
    keeps one copy of each weight in the dtype of the products, and so is entered anew for each batch.
    """
    copies: WeightCopies = {}
    # a mode is asked at every operation of torch, so only where it helps
    products = OnednnProducts() if mkl_without_avx512() else nullcontext()
    has_kernels = load_kernels() is not None
    with replace_calls(partial(call_fused, copies) if has_kernels else None), products:
        yield


def call_fused(copies: WeightCopies, function: Any, args: Any, kwargs: Any) -> Any:
    """The call of an overridable function in its fused form, or as it is if it has none."""
    fusion = FUSIONS.get(function)
    if fusion is not None and torch.is_grad_enabled():
        with torch._C.DisableTorchFunction():  # its products are chosen already
            fused = fusion(copies, *args, **kwargs)
        if fused is not None:
            return fused
    return function.__wrapped__(*args, **kwargs)
