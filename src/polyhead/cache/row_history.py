"""Where the slots of reordered rows are stored, so that beam search moves no keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.core.array_types import Ints


class RowHistory:
    """The storage row of each slot of each row.

    A row writes into a storage row of its own, its home, and reads the slots of its ancestors in theirs.
    After a selection the first child of a row takes its home; the others take homes of rows that have ended,
    where no remaining row reads a slot that they will write.
    """

    def __init__(self, n_rows: int, n_slots: int) -> None:
        self.homes: Ints = np.arange(n_rows)
        self.n_storage_rows = n_rows
        self.origins: Ints = np.repeat(self.homes[:, None], n_slots, 1)  # (rows, slots)
        self.is_shared = False  # whether a slot may belong to several rows

    def select(self, rows: Sequence[int], lengths: Sequence[int]) -> bool:
        """Row i becomes the old row ``rows[i]`` of ``lengths[i]`` tokens; False if the rows must be moved."""
        origins, slots = self.origins[rows], np.arange(self.origins.shape[1])
        is_used = slots < np.array(lengths)[:, None]
        _, first_children = np.unique(rows, return_index=True)
        homes = np.full(len(rows), -1)
        homes[first_children] = self.homes[np.array(rows)[first_children]]
        others = np.flatnonzero(homes < 0)
        if len(others):
            read_ends = np.zeros(self.n_storage_rows, np.int64)  # after the last slot that any row reads
            np.maximum.at(read_ends, origins[is_used], np.broadcast_to(slots + 1, origins.shape)[is_used])
            free = np.setdiff1d(np.arange(self.n_storage_rows), homes)[: len(others)]
            if len(free) < len(others) or (read_ends[free] > np.array(lengths)[others]).any():
                return False
            homes[others], self.is_shared = free, True
        self.homes, self.origins = homes, np.where(is_used, origins, homes[:, None])
        return True

    def grow(self, n: int) -> None:
        """Append n slots to each row."""
        self.origins = np.concatenate([self.origins, np.repeat(self.homes[:, None], n, 1)], 1)
