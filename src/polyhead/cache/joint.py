"""Several caches as one: of models that decode together, of layers of one that keep different things."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyhead.cache.base import Cache, LayerCache, Memory


class JointCache:
    """A cache for each model, or each kind of layers, with the same rows: what holds of all holds of it.

    ``places`` tells which layer of the model each layer of the parts is, where they do not follow each other.
    """

    def __init__(self, parts: Sequence[Cache], places: Sequence[int] | None = None) -> None:
        self.parts = parts
        every: list[LayerCache] = [layer for part in parts for layer in part.layers]
        self.layers = every if places is None else [every[places.index(i)] for i in range(len(every))]
        self.lossless = all(part.lossless for part in parts)
        self.rewinds = all(part.rewinds for part in parts)
        # where one has no room the step is begun again, so those begin first that may begin it twice
        self.leaves: list[Cache] = []
        for part in parts:
            self.leaves += part.leaves if isinstance(part, JointCache) else [part]
        self.leaves.sort(key=lambda leaf: not leaf.rewinds)

    @property
    def grain(self) -> int:
        return max(part.grain for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def memory(self) -> Memory:
        """Of all together; they may not have been largest at the same time, so the peak is a bound."""
        return Memory(*map(sum, zip(*(part.memory() for part in self.parts), strict=True)))

    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        for leaf in self.leaves:
            leaf.begin(rows, pos)

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
