"""Where a training stands: all that is needed to go on, besides the tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Plan = Callable[[int], Sequence[Any]]
"""The batches of an epoch, in order: a pure function of its number."""


@dataclass
class Progress:
    """Counters of one training. The data's position is (epoch, index): the next batch to be read."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    tokens: int = 0  # labels learned from
    skipped: int = 0  # updates left out because they were not finite
    in_a_row: int = 0  # how many of those came last
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best one

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        return asdict(self)

    def improved(self, value: float, higher_is_better: bool) -> bool:
        """Record an evaluation; True if it is the best so far."""
        better = self.best is None or (value > self.best if higher_is_better else value < self.best)
        if math.isfinite(value) and better:
            self.best, self.best_step, self.stale = value, self.step, 0
            return True
        self.stale += 1
        return False

    def batches(self, plan: Plan) -> Iterator[Any]:
        """Batches without end from where training stands, moving the position along."""
        while True:
            epoch = plan(self.epoch)
            assert len(epoch), "an epoch without batches"
            while self.index < len(epoch):
                self.index += 1
                yield epoch[self.index - 1]
            self.epoch, self.index = self.epoch + 1, 0
