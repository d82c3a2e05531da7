"""The cache of models whose past folds into a constant number of numbers: linear attention, recurrent layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape, Memory, StateShape
from polyhead.errors import UserError
from polyhead.nn.kv import KV, Watcher
from polyhead.registry import CACHE


@CACHE.register("state")
class StateCache:
    """A state of constant size for each sequence, whatever its length.

    What is folded in cannot be taken out again, so tokens come in the order of their positions, each once. Room never
    ends.

    Paper: Katharopoulos et al., 2020, sec. 3.4
    When: always, for layers that keep a state: linear attention, recurrent ones; beside keys and values nobody need choose it
    Recipe: generation: {cache: state}
    """

    lossless, rewinds, grain = True, False, 1

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int) -> None:
        if shape.keyed:
            raise UserError(
                "cache 'state' keeps a state, layers of this model keep keys and values: use cache 'static'"
            )
        self.lengths, self.device = [0] * n_rows, shape.device
        self.layers = [StateLayer(shape, state, n_rows) for state in shape.states if state]
        self.peak = self.nbytes

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def memory(self) -> Memory:
        """A state is used whole by a row that has begun."""
        begun, rows = sum(length > 0 for length in self.lengths), max(1, len(self.lengths))
        return Memory(self.nbytes, self.nbytes // rows * begun, self.peak)

    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host = list(rows), pos.cpu()
        for row, at in zip(rows, host, strict=True):
            new = at[at >= 0].tolist()
            end = self.lengths[row] + len(new)
            assert new == list(range(self.lengths[row], end)), (
                f"row {row} holds {self.lengths[row]} tokens; a state cannot take positions {new}"
            )
            self.lengths[row] = end
        every = rows == list(range(len(self.lengths)))
        index = None if every else torch.tensor(rows, device=self.device)
        for layer in self.layers:
            layer.rows = index

    def room(self, more: int = 0) -> int:
        return sys.maxsize

    def add(self, n: int) -> None:
        self.lengths += [0] * n
        for layer in self.layers:
            layer.held = [torch.cat([x, x.new_zeros(n, *x.shape[1:])]) for x in layer.held]

    @torch.inference_mode()  # a step may have run in it, and what it made is written nowhere else
    def fork(self, src: int, dst: int) -> None:
        self.lengths[dst] = self.lengths[src]
        for layer in self.layers:
            for x in layer.held:
                x[dst] = x[src]

    @torch.inference_mode()
    def release(self, row: int) -> None:
        self.lengths[row] = 0
        for layer in self.layers:
            for x in layer.held:
                x[row] = 0

    def select(self, rows: Sequence[int]) -> None:
        rows = [int(row) for row in rows]
        if rows == list(range(len(self.lengths))):
            return
        self.lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        for layer in self.layers:
            layer.select(index)
        self.peak = max(self.peak, self.nbytes)


class StateLayer:
    """The state of one layer, (row, ...), in fp32 at least, for sums over a long past; 0 before the first token."""

    def __init__(self, shape: CacheShape, state: StateShape, n_rows: int) -> None:
        wide = torch.promote_types(shape.dtype, torch.float32)
        self.held = [torch.zeros(n_rows, *size, dtype=wide, device=shape.device) for size in state]
        self.rows: Tensor | None = None  # the rows of this step; None: all, in order
        self.watcher: Watcher | None = None

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.held)

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What the rows of this step have seen so far, (B, ...) each."""
        return tuple(x if self.rows is None else x[self.rows] for x in self.held)

    @state.setter
    @torch.inference_mode()
    def state(self, new: tuple[Tensor, ...]) -> None:
        for i, (x, y) in enumerate(zip(self.held, new, strict=True)):
            assert y.shape[1:] == x.shape[1:], (
                f"a state of {tuple(y.shape[1:])} where {tuple(x.shape[1:])} is kept"
            )
            if self.rows is None:
                self.held[i] = y.detach().to(x.dtype)
            else:
                x[self.rows] = y.to(x.dtype)

    def update(self, kv: KV) -> KV:
        raise AssertionError("this layer keeps a state, not keys and values")

    def select(self, rows: Tensor) -> None:
        self.held = [x.index_select(0, rows) for x in self.held]
