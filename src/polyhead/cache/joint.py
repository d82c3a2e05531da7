"""The caches of models that decode together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyhead.cache.base import Cache, LayerCache, Memory


class JointCache:
    """A cache for each model, with the same rows: what holds of all holds of it."""

    def __init__(self, parts: Sequence[Cache]) -> None:
        self.parts = parts
        self.lossless = all(part.lossless for part in parts)
        self.rewinds = all(part.rewinds for part in parts)

    @property
    def grain(self) -> int:
        return max(part.grain for part in self.parts)

    @property
    def layers(self) -> Sequence[LayerCache]:
        return [layer for part in self.parts for layer in part.layers]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def memory(self) -> Memory:
        """Of all together; they may not have been largest at the same time, so the peak is a bound."""
        return Memory(*map(sum, zip(*(part.memory() for part in self.parts), strict=True)))

    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        for part in self.parts:
            part.begin(rows, pos)

    def room(self, more: int = 0) -> int:
        return min(part.room(more) for part in self.parts)

    def add(self, n: int) -> None:
        for part in self.parts:
            part.add(n)

    def fork(self, src: int, dst: int) -> None:
        for part in self.parts:
            part.fork(src, dst)

    def release(self, row: int) -> None:
        for part in self.parts:
            part.release(row)

    def select(self, rows: Sequence[int]) -> None:
        for part in self.parts:
            part.select(rows)
