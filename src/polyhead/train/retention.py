"""Which checkpoints stay: a decision about numbers alone, so that it can be tested without a disk."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from polyhead.errors import UserError


def best_step(scores: Mapping[int, float], *, higher_is_better: bool) -> int | None:
    """The step of the best score, the earliest of equals; a score that is not finite is none."""
    sign = -1.0 if higher_is_better else 1.0
    finite = {step: sign * score for step, score in scores.items() if math.isfinite(score)}
    return min(finite, key=lambda step: (finite[step], step)) if finite else None


def surplus(steps: Collection[int], keep: int, protected: Collection[int | None]) -> list[int]:
    """The steps to delete, oldest first: all but the ``keep`` highest numbers and the protected ones."""
    if keep < 1:
        raise UserError(f"keep ({keep}) must be at least 1: the newest checkpoint always stays")
    stay = set(sorted(steps)[-keep:]) | set(protected)
    return sorted(set(steps) - stay)
