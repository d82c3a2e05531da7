"""What stands around the two texts of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sides(NamedTuple):
    """Special tokens about a source and about a target.

    The encoder reads ``before text after``. The decoder reads ``start opening text`` and says ``opening text end``.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    start: int
    opening: tuple[int, ...]  # such as the language of the target; mostly none
    forced: bool  # whether the opening is given to the decoder; else it learns to say it
    end: int

    def source(self, ids: Sequence[int]) -> list[int]:
        """What the encoder reads."""
        return [*self.before, *ids, *self.after]

    def read(self, ids: Sequence[int]) -> list[int]:
        """What the decoder reads."""
        return [self.start, *self.opening, *ids]

    def said(self, ids: Sequence[int]) -> list[int]:
        """What it says."""
        return [*self.opening, *ids, self.end]

    def plain(self, ids: Sequence[int]) -> list[int]:
        """What the decoder said without its opening, if it has one."""
        n = len(self.opening)
        return list(ids[n:] if tuple(ids[:n]) == self.opening else ids)

    @property
    def most(self) -> int:
        """How many tokens a text has in addition, on the longer side."""
        return max(len(self.before) + len(self.after), 1 + len(self.opening))
