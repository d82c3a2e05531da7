"""Counters and data position of a training: the checkpoint's state without its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from polyhead.evaluate.perplexity import loss_to_perplexity

EpochBatches = Callable[[int], Sequence[Any]]
"""The batches of an epoch, in order: a pure function of the epoch number."""


_OLD_NAMES = {"in_a_row": "consecutive_skips", "stale": "evals_since_best"}  # in older checkpoints


@dataclass
class MetricSums:
    """Sums since the last logged row of metrics.

    They are saved in checkpoints, so that a resumed run logs the same rows.
    """

    total: float = 0.0  # the training loss, with smoothing and distillation
    nll: float = 0.0
    norm: float = 0.0  # of the gradient, before clipping
    count: int = 0  # labels
    updates: int = 0

    def compute_means(self) -> dict[str, float]:
        """Means: loss, NLL (without smoothing) and perplexity per label, gradient norm per update.

        They are NaN, null in metrics.jsonl, if every step was skipped.
        """
        count, updates = self.count or math.nan, self.updates or math.nan
        return {
            "loss": self.total / count,
            "nll": self.nll / count,
            "ppl": loss_to_perplexity(self.nll / count),
            "grad_norm": self.norm / updates,
        }


@dataclass
class Progress:
    """Counters of one training. (epoch, index) is the data position: the next batch to read."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    tokens: int = 0  # labels trained on
    updated: int = 0  # last step that updated the weights
    skipped: int = 0  # steps without an update: no label, or a loss that was not finite
    consecutive_skips: int = 0  # consecutive steps whose loss was not finite
    best: float | None = None
    best_step: int = 0
    evals_since_best: int = 0  # evaluations since the best one
    sums: MetricSums = field(default_factory=MetricSums)

    def to_json(self) -> dict[str, Any]:
        """The counters as JSON, for the checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Progress:
        """The inverse of ``to_json``."""
        counters = {_OLD_NAMES.get(name, name): value for name, value in state.items()}
        return cls(**counters | {"sums": MetricSums(**state["sums"])})

    def record_evaluation(self, value: float, higher_is_better: bool) -> bool:
        """Record an evaluation; True if it is the best so far. A value that is not finite never is."""
        better = self.best is None or (value > self.best if higher_is_better else value < self.best)
        if math.isfinite(value) and better:
            self.best, self.best_step, self.evals_since_best = value, self.step, 0
            return True
        self.evals_since_best += 1
        return False

    def iter_batches(self, epoch_batches: EpochBatches) -> Iterator[Any]:
        """Endless stream of batches from the current data position, which it advances."""
        while True:
            epoch = epoch_batches(self.epoch)
            assert len(epoch), "an epoch has no batches"
            while self.index < len(epoch):
                self.index += 1
                yield epoch[self.index - 1]
            self.epoch, self.index = self.epoch + 1, 0
