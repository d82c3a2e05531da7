"""Loss and gradient norm of a step, which are read from a GPU one step late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from polyhead.nn.device import PINNED_TYPES


class NumbersInFlight:
    """Numbers on their way to the CPU, without waiting for the work of the device.

    ``read`` waits only for what was queued before them.
    """

    def __init__(self, numbers: Sequence[Tensor]) -> None:
        stacked = torch.stack([x.detach().float() for x in numbers])
        self._event = torch.cuda.Event() if stacked.device.type in PINNED_TYPES else None
        # a copy of a GPU that does not wait is into page-locked memory
        self._host = stacked.to("cpu", non_blocking=self._event is not None)
        if self._event is not None:
            self._event.record()

    def read(self) -> list[float]:
        """The numbers, in their order."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers


class UnreadStep(NamedTuple):
    """A step whose numbers are not read yet: total and NLL of each batch in turn, then the gradient norm."""

    step: int
    n_labels: int
    numbers: NumbersInFlight

    def read(self) -> tuple[float, float, float]:
        """Total, NLL and gradient norm, added as they are without the delay."""
        *losses, norm = self.numbers.read()
        return *sum_losses(losses), norm


def sum_losses(losses: Sequence[float | Tensor]) -> tuple[float, float]:
    """Sums of the total and the NLL of each batch in turn; one after the other, as sum() may not."""
    total = nll = 0.0
    for batch_total, batch_nll in zip(losses[::2], losses[1::2], strict=True):
        total, nll = total + float(batch_total), nll + float(batch_nll)
    return total, nll


def skips_on_device(optimizer: Optimizer) -> bool:
    """Whether an optimizer skips a step by a flag of the device, ``found_inf``: torch's fused ones do."""
    return isinstance(optimizer, torch.optim.AdamW) and all(
        group["fused"] for group in optimizer.param_groups
    )


def step_if_finite(optimizers: Sequence[Optimizer], numbers: Sequence[Tensor]) -> Tensor:
    """Make the step if all numbers are finite, and return 1.0 if it was skipped; nothing is read."""
    is_finite = torch.stack([x.detach().float() for x in numbers]).isfinite().all()
    skipped = (~is_finite).float()
    for optimizer in optimizers:
        optimizer.found_inf = skipped  # type: ignore[attr-defined]
        optimizer.step()
    return skipped
