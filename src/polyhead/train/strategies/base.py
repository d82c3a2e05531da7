"""What a training does on its ranks: the passes of a step, the gradient norm, evaluations and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from polyhead.config.recipe import TrainConfig
from polyhead.kernels.training.adamw import AdamW
from polyhead.train.distributed.context_parallel import shard_batch
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.loss_module import LossModule, TrainingTask
from polyhead.train.optim import list_parameters
from polyhead.train.precision import autocast
from polyhead.train.train_state import TrainState
from polyhead.train.update import PendingMetrics, StepMetrics, can_defer_metrics, queue_update, update_weights


class Strategy:
    """The passes, gradients and checkpoints of a training on its ranks; all of them call every method."""

    delay = 0  # steps after which the metrics of a step are read
    has_full_model = True  # on this rank
    no_gradients: Callable[[], AbstractContextManager[Any]] = torch.inference_mode  # of an evaluation
    # for the passes of a batch; called with whether it is the last one of a step
    sync_context: Callable[[bool], AbstractContextManager[Any]] = nullcontext

    def __init__(self, training: TrainState, task: Any, config: TrainConfig, ranks: ProcessGroup) -> None:
        self.training, self.config, self.ranks = training, config, ranks
        self.task: TrainingTask = task
        self.loss_module = LossModule(training.model, task)
        self.root: nn.Module = self.loss_module  # as the ranks call it
        self.max_norm = config.clip_norm or math.inf

    def collate(self, rows: Any) -> list[Any]:
        """The batches of this rank of the rows of one."""
        return [collate_shard(self.task, rows, self.ranks)]

    def run_largest_batch(self) -> None:
        """Forward and backward pass of the largest batch, without an update."""
        [batch] = self.collate(self.task.largest_batch())
        with self.ranks.share_batch(self.training.model):
            with autocast(self.training.precision, self.training.device):
                loss = self.loss_module(batch)
            if any(self.ranks.all_reduce(loss.count)):
                loss.total.backward()

    def forward_backward(self, batches: Sequence[Any], counts: Sequence[float]) -> list[Tensor]:
        """Gradients of the mean loss of batches with these label counts on all ranks.

        Returns total and NLL of each batch with labels in turn.
        """
        training, scale, count = self.training, self.training.loss_scale, int(sum(counts))
        losses: list[Tensor] = []
        last = max((i for i, batch_count in enumerate(counts) if batch_count), default=None)
        for i, (batch, batch_count) in enumerate(zip(batches, counts, strict=True)):
            # final in the last batch with labels, where the sum of gradients overlaps with the backward pass
            with self.sync_context(i == last), self.ranks.share_batch(training.model):
                with autocast(training.precision, training.device):
                    loss = self.root(batch)
                if batch_count:
                    share = loss.total.float() / count  # fp16 would overflow with the loss scale
                    (share * scale.value if scale else share).backward()
                    losses += [loss.total.detach(), loss.nll]
        return losses

    def clip(self) -> Tensor | float:
        """Limit the norm of the gradients of all ranks; returns what it was."""
        optimizers = self.training.optimizers
        if len(optimizers) == 1 and isinstance(optimizers[0], AdamW):
            return optimizers[0].clip(self.max_norm)
        return nn.utils.clip_grad_norm_(list_parameters(*optimizers), self.max_norm)

    def step(self, losses: Sequence[Tensor], count: int) -> StepMetrics | PendingMetrics:
        """Update the weights from the gradients of ``count`` labels, if all is finite."""
        return update_weights(self.training, losses, count, self.clip, self.ranks)

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """``ranks.map_in_lockstep``, in which work can read the weights of the model."""
        return self.ranks.map_in_lockstep(work, items)

    def save(self, root: Path, extra: dict[str, str], prepare: Callable[[], None]) -> None:
        """Write checkpoints/step-N; rank 0 calls ``prepare`` before."""
        saved_state = self.training.export_state()

        def write() -> None:
            prepare()
            self.training.write(root, saved_state, extra)

        self.ranks.on_rank0(write)

    def gather(self, model: nn.Module) -> Strategy:
        """The strategy after the last step, in which every rank has the whole ``model``, newly built.

        Its weights are those of the checkpoint that is loaded next.
        """
        return self


class Single(Strategy):
    """One process with the whole model. On a GPU metrics are read during the next step, if they can be."""

    def __init__(self, training: TrainState, task: Any, config: TrainConfig, ranks: ProcessGroup) -> None:
        super().__init__(training, task, config, ranks)
        self.delay = int(can_defer_metrics(training))

    def step(self, losses: Sequence[Tensor], count: int) -> StepMetrics | PendingMetrics:
        if self.delay and count:
            return queue_update(self.training, losses, count, self.clip)
        return update_weights(self.training, losses, count, self.clip, self.ranks)


class Replicated(Strategy):
    """Ranks with the same weights, whose gradients are summed in buckets during the last backward pass."""

    def forward_backward(self, batches: Sequence[Any], counts: Sequence[float]) -> list[Tensor]:
        if self.root is self.loss_module:
            self.root = self.ranks.replicate(self.loss_module)  # torch's DistributedDataParallel
        return super().forward_backward(batches, counts)

    def sync_context(self, is_last: bool) -> AbstractContextManager[None]:
        """Context for the passes of a batch: gradients are summed in the last one."""
        if isinstance(self.root, DistributedDataParallel) and not is_last:
            return self.root.no_sync()
        return nullcontext()


def collate_shard(task: TrainingTask, rows: Any, ranks: ProcessGroup) -> Any:
    """The shard of a batch for this rank; a dummy batch if there are fewer rows than ranks."""
    shard = ranks.shard(task, rows)
    batch = task.collate(shard[0]) if shard else task.dummy_batch()
    return shard_batch(task, batch, ranks.place)
