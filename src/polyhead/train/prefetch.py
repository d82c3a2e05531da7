"""The batches of each step, collated and copied to a GPU while it computes the step before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.nn.device import move_batch
from polyhead.train.progress import EpochBatches, Progress


class _PrefetchedBatches(NamedTuple):
    batches: list[Any]
    random_state: Tensor  # of torch's generator on the CPU, after collating


class BatchPrefetcher:
    """Batches of one training, ``n_batches`` a step, from the data position of ``progress``.

    ``progress`` moves when batches are taken, so a checkpoint never counts those that are only prefetched.
    ``collate`` turns each of them into one batch or several micro-batches. It may draw random numbers:
    ``seed_step`` gives the seed of a step, and the numbers are the same whenever it is collated.
    """

    def __init__(
        self,
        progress: Progress,
        epoch_batches: EpochBatches,
        n_batches: int,
        collate: Callable[[Any], list[Any]],
        seed_step: Callable[[int], int],
        device: torch.device,
    ) -> None:
        self.progress, self.n_batches, self.device = progress, n_batches, device
        self.collate, self.seed_step = collate, seed_step
        self._position = Progress(epoch=progress.epoch, index=progress.index)  # of the next batch to collate
        self._rows = self._position.iter_batches(epoch_batches)
        self._next: _PrefetchedBatches | None = None

    def take(self, step: int) -> list[Any]:
        """Seed a step and return its batches, ``PlacedBatch`` if prefetched; the steps are taken in order."""
        torch.manual_seed(self.seed_step(step))
        prefetched, self._next = self._next, None
        if prefetched is None:
            batches = self._collate()
        else:
            batches = prefetched.batches
            torch.set_rng_state(prefetched.random_state)
        self.progress.epoch, self.progress.index = self._position.epoch, self._position.index
        return batches

    def prefetch(self, step: int) -> None:
        """Collate the batches of the next step and start to copy them; on the CPU nothing would overlap."""
        if self.device.type == "cpu":
            return
        random_state = torch.get_rng_state()
        torch.default_generator.manual_seed(self.seed_step(step))  # not those of the device, which are in use
        batches = [move_batch(batch, self.device) for batch in self._collate()]
        self._next = _PrefetchedBatches(batches, torch.get_rng_state())
        torch.set_rng_state(random_state)

    def _collate(self) -> list[Any]:
        return [batch for _ in range(self.n_batches) for batch in self.collate(next(self._rows))]
