"""Strategies of ranks with a part of the model: how it is saved, becomes whole, and its gradient norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.config.recipe import TrainConfig
from polyhead.train.distributed.local_tensor import get_local, is_dtensor
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.shard_model import get_sharding_mesh, shard_weights
from polyhead.train.optim import list_parameters
from polyhead.train.strategies.base import Replicated, Strategy
from polyhead.train.train_state import TrainState


class PartialModel(Strategy):
    """A rank with a part of the model, and the optimizer state of that part."""

    has_full_model = False
    no_gradients = torch.no_grad  # gathered weights are no inference tensors

    def save(self, root: Path, extra: dict[str, str], prepare: Callable[[], None]) -> None:
        from polyhead.train.distributed.sharded_checkpoint import save_sharded  # slow to import

        saved_state = self.training.export_state()
        self.ranks.on_rank0(prepare)
        is_sharded = self.config.parallel.checkpoint == "sharded"
        save_sharded(root, saved_state, extra, self.ranks, is_sharded)
        self.training.saved_best_step = self.training.progress.best_step

    def gather(self, model: nn.Module) -> Strategy:
        self.training.replace_model(model, self.config)
        return Replicated(self.training, self.task, self.config, self.ranks)


class Sharded(PartialModel):
    """Ranks of which each has a part of the weights, with the optimizer state of that part."""

    def __init__(self, training: TrainState, task: Any, config: TrainConfig, ranks: ProcessGroup) -> None:
        super().__init__(training, task, config, ranks)
        self.is_fully_sharded = ranks.place.shape.shard > 1
        if self.is_fully_sharded:
            assert ranks.mesh is not None
            mesh = get_sharding_mesh(ranks.mesh, ranks.place.shape)
            shard_weights(self.loss_module, mesh, config.parallel.reduce_dtype)

    def forward_backward(self, batches: Sequence[Any], counts: Sequence[float]) -> list[Tensor]:
        losses = super().forward_backward(batches, counts)
        if not self.is_fully_sharded:
            self.ranks.sum_gradients(self.training.model)
        return losses

    def sync_context(self, is_last: bool) -> AbstractContextManager[None]:
        """Context for the passes of a batch: gradients are summed over ranks in the last one."""
        if self.is_fully_sharded:
            self.loss_module.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return nullcontext()

    def clip(self) -> float:
        return clip_sharded_gradients(list_parameters(*self.training.optimizers), self.max_norm, self.ranks)

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        root = self.loss_module
        results = self.ranks.map_in_lockstep(lambda item: root.run(lambda: work(item)), items)
        if self.is_fully_sharded:
            root.reshard()  # type: ignore[operator]  # its weights stay gathered for a backward pass
        return results


def clip_sharded_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    ranks: ProcessGroup,
    other_ranks_parameters: Iterable[nn.Parameter] = (),
) -> float:
    """As ``nn.utils.clip_grad_norm_`` over all ranks; each weight counts once, sharded or copied.

    ``other_ranks_parameters`` count on another rank. All ranks call it.
    """
    trained = [p for p in parameters if p.grad is not None]
    grads = [get_local(p.grad) for p in trained if p.grad is not None]
    norms: list[Tensor] = list(torch._foreach_norm(grads)) if grads else []
    other_ids = set(map(id, other_ranks_parameters))
    squares = sum(
        float(norm) ** 2 * _count_shards(p)
        for p, norm in zip(trained, norms, strict=True)
        if id(p) not in other_ids
    )
    [total] = ranks.all_reduce(squares / ranks.place.shape.n_ranks_per_stage)  # each part is on several ranks
    total_norm = math.sqrt(total)
    if grads and total_norm > max_norm:
        torch._foreach_mul_(grads, max_norm / (total_norm + 1e-6))
    return total_norm


def _count_shards(tensor: Tensor) -> int:
    """Number of different parts of a tensor."""
    if not is_dtensor(tensor):
        return 1
    sizes = tensor.device_mesh.shape
    return math.prod(
        int(size)
        for size, placement in zip(sizes, tensor.placements, strict=True)
        if not placement.is_replicate()
    )
