"""The update of the weights at the end of a step, and its metrics, which a GPU can report one step late."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from polyhead.core.i18n import tr
from polyhead.nn.device import PINNED_TYPES
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.optim import set_rates
from polyhead.train.progress import MetricSums, Progress
from polyhead.train.train_state import TrainState

ClipFn = Callable[[], Tensor | float]
"""Limits the norm of the gradients; returns what it was."""


class StepMetrics(NamedTuple):
    """The metrics of a step, sums over its labels on all ranks."""

    step: int
    n_labels: int
    total: float  # the training loss, with smoothing and distillation
    nll: float
    norm: float  # of the gradient, before clipping
    lowered_scale: float | None = None  # the loss scale of fp16 from now on, if gradients overflowed

    def read(self) -> StepMetrics:
        return self


class PendingMetrics(NamedTuple):
    """The metrics of a step that the device may not have computed yet."""

    step: int
    n_labels: int
    numbers: NumbersInFlight  # total and NLL of each batch in turn, then the gradient norm

    def read(self) -> StepMetrics:
        """The metrics, added as they are without the delay."""
        *losses, norm = self.numbers.read()
        return StepMetrics(self.step, self.n_labels, *sum_losses(losses), norm)


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


def update_weights(
    training: TrainState, losses: Sequence[Tensor], count: int, clip: ClipFn, ranks: ProcessGroup
) -> StepMetrics:
    """Update the weights from their gradients, unless there is no label or something is not finite.

    ``losses`` are total and NLL of each batch of this rank in turn, ``count`` the labels of all ranks.
    """
    step, scale = training.progress.step, training.loss_scale
    total, nll = ranks.sum_counted(*sum_losses(losses))
    if scale:
        scale.unscale(training.model)
    norm = float(clip())
    is_finite = math.isfinite(total + norm)
    if count and is_finite:
        set_rates(training.optimizers, training.schedule(step))
        for optimizer in training.optimizers:
            optimizer.step()
        if training.ema:
            training.ema.update(training.model, step)
    for optimizer in training.optimizers:
        optimizer.zero_grad()
    overflows = scale and count and math.isfinite(total) and scale.update(is_finite)
    return StepMetrics(step, count, total, nll, norm, scale.value if scale and overflows else None)


def queue_update(training: TrainState, losses: Sequence[Tensor], count: int, clip: ClipFn) -> PendingMetrics:
    """``update_weights`` of one process, queued on its device; nothing is read."""
    numbers = [*losses, torch.as_tensor(clip())]
    set_rates(training.optimizers, training.schedule(training.progress.step))
    skipped = step_if_finite(training.optimizers, numbers)
    if training.ema:
        training.ema.update(training.model, training.progress.step, skipped)
    for optimizer in training.optimizers:
        optimizer.zero_grad()
    return PendingMetrics(training.progress.step, count, NumbersInFlight(numbers))


def sum_losses(losses: Sequence[float | Tensor]) -> tuple[float, float]:
    """Sums of the total and the NLL of each batch in turn; one after the other, as sum() may not."""
    total = nll = 0.0
    for batch_total, batch_nll in zip(losses[::2], losses[1::2], strict=True):
        total, nll = total + float(batch_total), nll + float(batch_nll)
    return total, nll


def can_defer_metrics(training: TrainState) -> bool:
    """Whether the metrics of a step can be read during the next one, so that the device never waits.

    Not where they decide on the CPU: in the loss scale of fp16, and in optimizers that cannot skip a step by
    themselves.
    """
    return (
        training.device.type != "cpu"
        and training.loss_scale is None
        # torch's fused optimizers skip a step by a flag of the device, ``found_inf``
        and all(
            isinstance(optimizer, torch.optim.AdamW)
            and all(group["fused"] for group in optimizer.param_groups)
            for optimizer in training.optimizers
        )
    )


def step_if_finite(optimizers: Sequence[Optimizer], numbers: Sequence[Tensor]) -> Tensor:
    """Make the step if all numbers are finite, and return 1.0 if it was skipped; nothing is read."""
    is_finite = torch.stack([x.detach().float() for x in numbers]).isfinite().all()
    skipped = (~is_finite).float()
    optimizer: Any  # torch does not declare the flag
    for optimizer in optimizers:
        optimizer.found_inf = skipped
        optimizer.step()
    return skipped


def record_step(progress: Progress, metrics: StepMetrics) -> str:
    """Count a step; returns why it was skipped, else ''."""
    step, count, total, nll, norm, lowered_scale = metrics
    is_finite = math.isfinite(total + norm)
    if lowered_scale is not None:
        progress.skipped += 1
        return tr(
            "gradients overflow in fp16, so the loss is scaled by {scale:g} from now on", scale=lowered_scale
        )
    if not (count and is_finite):
        progress.skipped += 1
        progress.consecutive_skips += not is_finite
        return tr("no labels, nothing to learn") if is_finite else tr("the loss is not finite")
    progress.tokens += count
    progress.updated, progress.consecutive_skips = step, 0
    sums = progress.sums
    progress.sums = MetricSums(
        sums.total + total, sums.nll + nll, sums.norm + norm, sums.count + count, sums.updates + 1
    )
    return ""
