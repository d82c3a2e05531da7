"""Moving average of the weights during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyhead.nn.state import check_weight, named_state
from polyhead.train.distributed.local_tensor import shard_like


class Ema:
    """Exponential moving average of the parameters (Polyak & Juditsky, 1992).

    The decay at step t is at most (1 + t) / (10 + t), so that the initial weights do not dominate early
    averages.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in named_state(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int, skipped: Tensor | None = None) -> None:
        """Update the average with the model's current weights, unless ``skipped``, of the device, is 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        # packed weights are frozen
        state = {name: p for name, p in named_state(model).items() if p.is_floating_point()}
        names, params = zip(*state.items(), strict=True)
        averages, weights = [self.weights[name] for name in names], [p.detach() for p in params]
        if skipped is None:
            torch._foreach_lerp_(averages, weights, 1 - decay)
        else:
            torch._foreach_lerp_(averages, weights, [(1 - skipped) * (1 - decay)] * len(weights))

    def load(self, state: Mapping[str, Tensor], source: object = None) -> None:
        """Load averages from a checkpoint, the ``source``."""
        _copy_present(self.weights, state, source)

    @contextmanager
    def apply_to(self, model: nn.Module) -> Iterator[None]:
        """Swap the averaged weights into the model inside the context."""
        original = {name: p.detach().clone() for name, p in named_state(model).items()}
        copy_into(model, self.weights)
        try:
            yield
        finally:
            copy_into(model, original)


@torch.no_grad()
def copy_into(model: nn.Module, state: Mapping[str, Tensor], source: object = None) -> None:
    """Copy ``state`` into the model's weights of the same names; see ``_copy_present``."""
    _copy_present(named_state(model), state, source)


def _copy_present(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], source: object = None) -> None:
    """Copy ``state`` into the tensors of the same names; a stage of a pipeline does not have all of them.

    If ``state`` was read from a ``source``, NaN or an infinite value in it is a UserError.
    """
    for name, full in state.items():
        if source:
            check_weight(name, full, source)
        if name in tensors:
            tensors[name].copy_(shard_like(full, tensors[name]))
