"""Where a training stands: all that is needed to go on, besides the tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from polyhead.analysis.recovered import perplexity_of

Plan = Callable[[int], Sequence[Any]]
"""The batches of an epoch, in order: a pure function of its number."""


@dataclass
class Sums:
    """What was learned since the last row of metrics: kept in checkpoints, so that a resumed run writes equal rows."""

    total: float = 0.0  # the loss that is minimised
    nll: float = 0.0
    norm: float = 0.0  # of the gradient, before clipping
    count: int = 0  # labels
    updates: int = 0

    def means(self) -> dict[str, float]:
        """Loss, negative log-likelihood (without smoothing) and perplexity of a label, norm of an update."""
        count, updates = max(self.count, 1), max(self.updates, 1)
        return {
            "loss": self.total / count,
            "nll": self.nll / count,
            "ppl": perplexity_of(self.nll / count),
            "grad_norm": self.norm / updates,
        }


@dataclass
class Progress:
    """Counters of one training. The data's position is (epoch, index): the next batch to be read."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    tokens: int = 0  # labels learned from
    updated: int = 0  # the last step that changed the weights
    skipped: int = 0  # steps that did not: nothing to learn from, or not finite
    in_a_row: int = 0  # how many of the last steps were not finite
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # evaluations since the best one
    sums: Sums = field(default_factory=Sums)

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Progress:
        """The inverse of ``to_json``."""
        return cls(**saved | {"sums": Sums(**saved["sums"])})

    def improved(self, value: float, higher_is_better: bool) -> bool:
        """Record an evaluation; True if it is the best so far, which one that is not finite never is."""
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
