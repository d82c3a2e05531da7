"""Averages of weights: over time while training, or over the last checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyhead.nn.weights import weights


class Ema:
    """Exponential moving average of the parameters (Polyak & Juditsky, 1992).

    The decay rises with the steps as (1 + t) / (10 + t), so that the first averages are not the initial weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in weights(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model's present weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        names, theirs = zip(*weights(model).items(), strict=True)
        torch._foreach_lerp_([self.weights[name] for name in names], [p.detach() for p in theirs], 1 - decay)

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from averages that were saved."""
        for name, ours in self.weights.items():
            ours.copy_(saved[name])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged weights, for as long as the context lasts."""
        own = {name: p.detach().clone() for name, p in weights(model).items()}
        put(model, self.weights)
        try:
            yield
        finally:
            put(model, own)


@torch.no_grad()
def put(model: nn.Module, others: Mapping[str, Tensor]) -> None:
    """Copy others into the weights of the same names."""
    for name, tensor in weights(model).items():
        tensor.copy_(others[name])


def mean(several: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor over several sets of weights, summed in float64."""
    assert several
    return {
        name: (torch.stack([one[name].double() for one in several]).mean(0)).to(first.dtype)
        for name, first in several[0].items()
    }
