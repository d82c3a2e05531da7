"""Which checkpoints stay: a decision about numbers alone, so that it can be tested without a disk."""

from __future__ import annotations

from collections.abc import Collection

from polyhead.errors import UserError


def surplus(steps: Collection[int], keep: int, protected: Collection[int | None]) -> list[int]:
    """The steps to delete, oldest first: all but the ``keep`` highest numbers and the protected ones."""
    if keep < 1:
        raise UserError(f"keep ({keep}) must be at least 1: the newest checkpoint always stays")
    stay = set(sorted(steps)[-keep:]) | set(protected)
    return sorted(set(steps) - stay)
