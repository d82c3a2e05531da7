"""Cache of models with a recurrent state of constant size: linear attention and recurrent layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.cache.row_cache import RowCache, RowLayer, select_rows, write_rows
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.nn.cache import CacheShape, StateShape
from polyhead.nn.kv import KV


@CACHE.register("state")
class StateCache(RowCache):
    """Store a state of constant size per sequence, whatever its length.

    A token cannot be removed from a state, so tokens must come in the order of their positions, each once.
    The cache is never full.

    Paper: Katharopoulos et al., 2020, sec. 3.4
    When: always, for layers with a state (linear attention, recurrent layers); it is chosen automatically for
      them
    Recipe: generation: {cache: state}
    """

    name, lossless = "state", True

    def __init__(self, shape: CacheShape, n_rows: int, max_len: int) -> None:
        if shape.kv_layers:
            raise UserError(
                "cache 'state' stores a recurrent state, but layers of this model have keys and "
                "values: use cache 'static'"
            )
        super().__init__(shape._replace(states=()), n_rows, sys.maxsize)
        self.layers: list[StateLayer] = [StateLayer(shape, state, n_rows) for state in shape.states if state]

    def used_bytes(self) -> int:
        """Bytes of the states of all rows that have tokens."""
        n_active, rows = sum(length > 0 for length in self.lengths), max(1, len(self.lengths))
        return self.nbytes // rows * n_active

    def prepare_step(self, rows: Sequence[int], pos: Tensor) -> None:
        rows, host = list(rows), pos.cpu()
        for row, row_pos in zip(rows, host, strict=True):
            new_pos = row_pos[row_pos >= 0].tolist()
            end = self.lengths[row] + len(new_pos)
            assert new_pos == list(range(self.lengths[row], end)), (
                f"row {row} holds {self.lengths[row]} tokens; a recurrent state cannot take "
                f"positions {new_pos}"
            )
            self.lengths[row] = end
        index = self.row_index(rows)
        for layer in self.layers:
            layer.step = index  # a layer needs nothing but the rows

    def free_tokens(self, extra_rows: int = 0) -> int:
        return sys.maxsize


class StateLayer(RowLayer):
    """The state of one layer, (row, ...), at least fp32 for long sums; 0 before the first token."""

    def __init__(self, shape: CacheShape, state: StateShape, n_rows: int) -> None:
        super().__init__()
        self.row_tensors = {f"state_{i}": 0 for i in range(len(state))}
        dtype = torch.promote_types(shape.dtype, torch.float32)
        for name, size in zip(self.row_tensors, state, strict=True):
            setattr(self, name, torch.zeros(n_rows, *size, dtype=dtype, device=shape.device))

    @property
    def tensors(self) -> list[Tensor]:
        return [getattr(self, name) for name in self.row_tensors]

    @property
    def state(self) -> tuple[Tensor, ...]:
        """State of the rows of this step, (B, ...) each."""
        return tuple(select_rows(x, self.step) for x in self.tensors)

    @state.setter
    @torch.inference_mode()
    def state(self, values: tuple[Tensor, ...]) -> None:
        for name, x, y in zip(self.row_tensors, self.tensors, values, strict=True):
            assert y.shape[1:] == x.shape[1:], (
                f"a state of {tuple(y.shape[1:])} where {tuple(x.shape[1:])} was stored"
            )
            if self.step is None:
                setattr(self, name, y.detach().to(x.dtype))
            else:
                write_rows(x, self.step, y.to(x.dtype))

    def update(self, kv: KV) -> KV:
        raise AssertionError("this layer has a recurrent state, not keys and values")
