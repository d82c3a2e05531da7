"""The cache of models whose past folds into a constant number of numbers: linear attention, recurrent layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.cache.base import CacheShape, StateShape
from polyhead.cache.rows import RowCache, RowLayer, of, put
from polyhead.errors import UserError
from polyhead.nn.kv import KV
from polyhead.registry import CACHE


@CACHE.register("state")
class StateCache(RowCache):
    """A state of constant size for each sequence, whatever its length.

    What is folded in cannot be taken out again, so tokens come in the order of their positions, each once. Room never
    ends.

    Paper: Katharopoulos et al., 2020, sec. 3.4
    When: always, for layers that keep a state: linear attention, recurrent ones; beside keys and values nobody need choose it
    Recipe: generation: {cache: state}
    """

    name, lossless = "state", True

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int) -> None:
        if shape.keyed:
            raise UserError(
                "cache 'state' keeps a state, layers of this model keep keys and values: use cache 'static'"
            )
        super().__init__(shape._replace(states=()), n_rows, sys.maxsize)
        self.layers: list[StateLayer] = [StateLayer(shape, state, n_rows) for state in shape.states if state]

    def used(self) -> int:
        """A state is used whole by a row that has begun."""
        begun, rows = sum(length > 0 for length in self.lengths), max(1, len(self.lengths))
        return self.nbytes // rows * begun

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
            layer.step = index  # the rows are all that a layer asks for

    def room(self, more: int = 0) -> int:
        return sys.maxsize


class StateLayer(RowLayer):
    """The state of one layer, (row, ...), in fp32 at least, for sums over a long past; 0 before the first token."""

    def __init__(self, shape: CacheShape, state: StateShape, n_rows: int) -> None:
        super().__init__()
        self.kept = {f"state_{i}": 0 for i in range(len(state))}
        wide = torch.promote_types(shape.dtype, torch.float32)
        for name, size in zip(self.kept, state, strict=True):
            setattr(self, name, torch.zeros(n_rows, *size, dtype=wide, device=shape.device))

    @property
    def held(self) -> list[Tensor]:
        return [getattr(self, name) for name in self.kept]

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What the rows of this step have seen so far, (B, ...) each."""
        return tuple(of(x, self.step) for x in self.held)

    @state.setter
    @torch.inference_mode()
    def state(self, new: tuple[Tensor, ...]) -> None:
        for name, x, y in zip(self.kept, self.held, new, strict=True):
            assert y.shape[1:] == x.shape[1:], (
                f"a state of {tuple(y.shape[1:])} where {tuple(x.shape[1:])} is kept"
            )
            if self.step is None:
                setattr(self, name, y.detach().to(x.dtype))
            else:
                put(x, self.step, y.to(x.dtype))

    def update(self, kv: KV) -> KV:
        raise AssertionError("this layer keeps a state, not keys and values")
