"""Activation recomputation: keep a block's input, and run the block again in the backward pass.

Paper: Chen et al., 2016, sec. 3
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

from polyhead.nn.norm import BatchNorm
from polyhead.nn.override import active_handler, replace_calls
from polyhead.nn.state import running_stats

AllReduce = Callable[[Tensor], Tensor]


def recompute_in_backward(layer: nn.Module, fn: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """``fn(*inputs)``, which calls ``layer``; of its activations only ``inputs`` are kept.

    The backward pass calls ``fn`` again, with the same random numbers, autocast and matrix products, so that
    gradients have the same bits.
    """
    out: Tensor = checkpoint(_RepeatedCall(layer, fn), *inputs, use_reentrant=False)
    return out


class _RepeatedCall:
    """A function of a layer whose repetitions return the same values and have no side effects.

    They leave the running statistics as they are. Sums of batch norm over all ranks are those of the first
    call, because a rank without labels has no backward pass and would not take part.
    """

    def __init__(self, layer: nn.Module, fn: Callable[..., Tensor]) -> None:
        self.layer, self.fn = layer, fn
        # fused forms and oneDNN's products, which are not active in the backward pass
        self.handler, self.modes = active_handler(), _get_current_function_mode_stack()
        self.norms = [part for part in layer.modules() if isinstance(part, BatchNorm)]
        self.sums: list[Tensor] | None = None

    def __call__(self, *inputs: Any) -> Tensor:
        if self.sums is None:
            self.sums = []
            with _replace_all_reduce(self.norms, self._record_sums):
                return self.fn(*inputs)
        sums = iter(self.sums)
        with ExitStack() as stack:
            stack.enter_context(replace_calls(self.handler))
            for mode in self.modes:
                stack.enter_context(mode)
            stack.enter_context(_restore_running_stats(self.layer))
            stack.enter_context(
                _replace_all_reduce(self.norms, lambda _: lambda x: _ReplaySum.apply(x, next(sums)))
            )
            return self.fn(*inputs)

    def _record_sums(self, all_reduce: AllReduce) -> AllReduce:
        def reduce_and_record(x: Tensor) -> Tensor:
            assert self.sums is not None
            total = all_reduce(x)
            self.sums.append(total.detach())
            return total

        return reduce_and_record


@contextmanager
def _replace_all_reduce(norms: list[BatchNorm], wrap: Callable[[AllReduce], AllReduce]) -> Iterator[None]:
    """Wrap the all-reduce of batch norms inside the context."""
    originals = [norm.all_reduce for norm in norms]
    for norm, all_reduce in zip(norms, originals, strict=True):
        norm.all_reduce = wrap(all_reduce)
    try:
        yield
    finally:
        for norm, all_reduce in zip(norms, originals, strict=True):
            norm.all_reduce = all_reduce


@contextmanager
def _restore_running_stats(layer: nn.Module) -> Iterator[None]:
    """Restore the running statistics of a layer at the end of the context."""
    stats = running_stats(layer)
    saved = {name: statistic.clone() for name, statistic in stats.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, statistic in stats.items():
                statistic.copy_(saved[name])


class _ReplaySum(torch.autograd.Function):
    """The recorded sum in place of x. Its graph is never used for a backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Tensor) -> Tensor:
        return total.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
