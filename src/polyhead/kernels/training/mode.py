"""The mode of training on a CPU: which calls of a forward pass run in fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.onednn_matmul import OnednnProducts, mkl_without_avx512
from polyhead.kernels.training.attention import fuse_attend, fuse_attention
from polyhead.kernels.training.conditions import WeightCopies
from polyhead.kernels.training.feed_forward import fuse_feed_forward, fuse_gated_feed_forward
from polyhead.kernels.training.loss import fuse_cross_entropy
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.feed_forward.mlp import FeedForward, GatedFeedForward
from polyhead.nn.kv import attend
from polyhead.nn.loss import cross_entropy
from polyhead.nn.override import replace_calls
from polyhead.nn.residual import Residual

Fusion = Callable[..., Any]
"""A faster form: takes the copies of weights and the arguments of the call; None if it does not apply."""

SUBLAYER_FUSIONS: Mapping[type[nn.Module], Fusion] = {
    Attention: fuse_attention,
    FeedForward: fuse_feed_forward,
    GatedFeedForward: fuse_gated_feed_forward,
}
"""The fused residuals by type of sub-layer: (copies, residual, x, sublayer, pos, *inputs) -> (B, T, C)."""


def training_kernels() -> AbstractContextManager[object]:
    """Context of a forward pass with gradients on the CPU; a null context where there are no kernels."""
    has_kernels = load_kernels() is not None or mkl_without_avx512()
    return TrainingKernels() if has_kernels else nullcontext()


class TrainingKernels(AbstractContextManager[object]):
    """Runs sub-layers, losses and fp32 products in their fused form, where there is one.

    Everything else runs as it would without the context: layers that are compiled or exported, other devices
    and dtypes, passes without gradients, modules with hooks and weights that are no plain parameters. It
    keeps one copy of each weight in the dtype of the products, and so is entered anew for each batch.
    """

    def __init__(self) -> None:
        self.copies = WeightCopies()
        self.contexts = ExitStack()

    def __enter__(self) -> Self:
        self.contexts.enter_context(replace_calls(self.replace_call))
        if mkl_without_avx512():  # a mode is asked at every operation of torch, so only where it helps
            self.contexts.enter_context(OnednnProducts())
        return self

    def __exit__(self, *error: Any) -> None:
        self.contexts.close()

    def replace_call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The call of an overridable function in its fused form, or as it is if it has none."""
        fusion = FUSIONS.get(function)
        if fusion is not None and torch.is_grad_enabled():
            with torch._C.DisableTorchFunction():  # its products are chosen already
                fused = fusion(self.copies, *args, **kwargs)
            if fused is not None:
                return fused
        return function.__wrapped__(*args, **kwargs)


def fuse_residual(
    copies: WeightCopies, residual: Residual, x: Tensor, sublayer: Any, *inputs: Any
) -> Tensor | None:
    """A residual and its sub-layer in one function: (B, T, C) -> (B, T, C); None without such a form."""
    fusion = SUBLAYER_FUSIONS.get(type(sublayer))
    return None if fusion is None else fusion(copies, residual, x, sublayer, *inputs)


FUSIONS: Mapping[Any, Fusion] = {
    Residual.forward: fuse_residual,
    attend: fuse_attend,
    cross_entropy: fuse_cross_entropy,
}
"""The fused forms of functions that are overridable."""
