"""The module of a training step: one forward pass from a batch to its loss; what training needs of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import nn

from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.loss import Loss

MapFn = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""``map``, or ``ProcessGroup.map`` or ``map_in_lockstep``, which distribute the items over ranks."""


class LossTask(Protocol):
    """What a training step needs of a task. Losses are sums, so that accumulation averages exactly."""

    def count_labels(self, batch: Any) -> int: ...
    def loss(self, model: nn.Module, batch: Any) -> Loss: ...


class TrainingTask(LossTask, Protocol):
    """Data, loss and evaluation of a training."""

    labels: tuple[str, ...]  # classes of whole texts; if any, speed is counted in texts, not in tokens

    def epoch_batches(self, epoch: int) -> Sequence[Any]: ...
    def largest_batch(self) -> Any: ...
    def shard(self, rows: Any, n: int) -> list[Any]: ...
    def collate(self, rows: Any) -> Any: ...

    def dummy_batch(self) -> Any:
        """A batch of one padding token without a label.

        It changes no loss, gradient or statistic: a rank without rows runs it to join the collectives.
        """

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]: ...


class LossModule(nn.Module):
    """A model with its task, whose forward turns a batch into its ``Loss``.

    All weights are read inside this forward, also those of the head, which the loss reads without calling it.
    So it can be the root of wrappers that gather, reduce or compile per forward pass: torch's FSDP, DDP and
    compile. Every expert of the model is called in every pass, so that all ranks have the same gradients.
    """

    def __init__(self, model: nn.Module, task: LossTask) -> None:
        super().__init__()
        self.model, self.task = model, task
        for part in model.modules():
            if isinstance(part, MixtureOfExperts):
                part.calls_idle_experts = True

    def forward(self, batch: Any) -> Loss:
        """The sums of the task's loss over the labels of a batch."""
        return self.task.loss(self.model, batch)

    def run(self, work: Callable[[], Any]) -> Any:
        """Run ``work``, which reads weights of the model, for its result.

        Wrappers that gather weights for the forward pass gather them for this one, too.
        """
        return work()
