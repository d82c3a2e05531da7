"""Decide which checkpoints to delete, from step numbers alone, so that it can be tested without a disk."""

from __future__ import annotations

from collections.abc import Collection

from polyhead.core.errors import UserError


def steps_to_delete(
    steps: Collection[int], n_keep: int, protected_steps: Collection[int | None]
) -> list[int]:
    """The steps to delete, oldest first: all but the ``n_keep`` highest and the protected ones."""
    if n_keep < 1:
        raise UserError(f"keep ({n_keep}) must be at least 1: the newest checkpoint is always kept")
    retained = set(sorted(steps)[-n_keep:]) | set(protected_steps)
    return sorted(set(steps) - retained)
