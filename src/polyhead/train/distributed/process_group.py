"""Processes of a training: interface and single process; several: ``torch_process_group``.

An update is the same for any number of ranks: the rows of a batch are sharded, and counts, losses and
gradients are summed over all ranks before any division. The batches of an evaluation are sharded as well.
Only rank 0 writes files and messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from polyhead.config.config_sections import ParallelConfig
from polyhead.train.distributed.mesh import MeshShape, RankPlace, resolve_mesh_shape
from polyhead.train.loss_module import LossModule, TrainingTask

T = TypeVar("T")


@contextmanager
def limit_threads(n_threads: int | None) -> Iterator[None]:
    """Set the number of CPU threads inside the context (None: unchanged); restore it afterwards."""
    old_threads = torch.get_num_threads()
    torch.set_num_threads(n_threads or old_threads)
    try:
        yield
    finally:
        torch.set_num_threads(old_threads)


class ProcessGroup:
    """Operations between the ranks of a training, which here has a single one."""

    rank, world_size = 0, 1
    place = RankPlace(MeshShape(), 0)  # in the mesh
    mesh: DeviceMesh | None = None  # with the names of ``MeshShape``; None if every rank has the whole model
    # options of ``polyhead train`` to launch the same number of processes
    relaunch_options: tuple[str, ...] = ()

    def use_threads(self, n_threads: int | None) -> None:
        """Set the CPU threads: ``n_threads``, or all, divided among the processes of this machine."""
        if n_threads:
            torch.set_num_threads(n_threads)

    def form_mesh(self, parallel: ParallelConfig, device_type: str) -> None:
        """Arrange the ranks in a mesh; a UserError if their number does not fit."""
        resolve_mesh_shape(parallel, 1)

    def shard(self, task: TrainingTask, rows: Any) -> list[Any]:
        """The shard of a batch for this rank, in a list; empty if there are fewer rows than shards."""
        return [rows]

    def all_reduce(self, *numbers: float) -> list[float]:
        """Sum each number over all ranks; bit-identical on all of them."""
        return list(numbers)

    def sum_counted(self, *numbers: float) -> list[float]:
        """As ``all_reduce``, but of ranks with the same losses and labels only one counts."""
        return list(numbers)

    def translate_errors(self) -> AbstractContextManager[None]:
        """Context in which a failed collective of torch raises as one of these methods does."""
        return nullcontext()

    def share_batch(self, model: nn.Module) -> AbstractContextManager[None]:
        """Context for the forward and backward pass of one batch, or of this rank's part of one.

        Batch norms and loads of experts inside it are those of the whole batch, and attention reads the keys
        and values of all tokens of its rows.
        """
        return nullcontext()

    def replicate(self, root: LossModule) -> nn.Module:
        """The module to call instead of ``root``: gradients of its backward pass are sums over all ranks."""
        return root

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum the gradients of a model of which this rank has a part, over the ranks with the same part."""

    def on_rank0(self, work: Callable[[], T]) -> T:
        """Run ``work`` on rank 0; return its result (JSON types) on all ranks, which wait while it lives.

        There must be no collective in ``work``: the other ranks do not take part.
        """
        return work()

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """Results (JSON types) of ``work`` for each item, in order, on all ranks; items are dealt in turn."""
        return map(work, items)

    def map_in_lockstep(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """As ``map``, with the same number of calls on every rank, so that ``work`` may be a collective.

        A rank without an item of its own repeats the last one and drops its result.
        """
        return map(work, items)

    def interrupt(self) -> None:
        """Forward a signal that ends work at once to all ranks."""

    def rank0_first(self, work: Callable[[], T]) -> T:
        """Run ``work`` on every rank: rank 0 first, then one rank of each machine, then the rest.

        Cached files are thus built once per file system, whether or not machines share one.
        """
        return work()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of rank 0 into those of all ranks, in place."""

    def broadcast_replicas(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors into those of all ranks that hold a copy of them, in place."""


SINGLE_PROCESS = ProcessGroup()
