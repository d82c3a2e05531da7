"""Cache protocols: ``LayerCache`` for attention layers, ``Cache`` for generation and serving.

Neither side depends on the kind of cache. A decoding step is ``cache.prepare_step(rows, pos)``, then
``model.decode(tokens, pos, cache, memory)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from polyhead.nn.kv import KV, WeightsHook, Window

StateShape = tuple[tuple[int, ...], ...]
"""Shapes of the constant-size state that a row of a layer has instead of keys and values."""


class CacheShape(NamedTuple):
    """Sizes of a model's keys and values; with a number of rows and a length they define a cache."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    v_dim: int
    dtype: torch.dtype
    device: torch.device
    states: tuple[StateShape | None, ...] = ()
    """The state shapes of each layer that has a state instead of keys and values; empty if none has."""
    windows: tuple[Window | None, ...] = ()
    """The attention window of each layer that has one; empty if none has."""
    needs_distances: bool = False
    """Whether scores depend on the distance between query and slot (alibi, t5, shaw, disentangled)."""
    extra: tuple[CacheShape, ...] = ()
    """Shapes of the other models of an ensemble, each with its own cache."""

    layer_ids: tuple[int, ...] = ()
    """The model's layers that this shape covers; empty: all of them."""

    @property
    def models(self) -> tuple[CacheShape, ...]:
        """The shapes of all models that decode together."""
        return self._replace(extra=()), *self.extra

    @property
    def kv_layers(self) -> list[int]:
        """Indices of the layers with keys and values; the others have a state."""
        return [i for i in range(self.n_layers) if not self.states or self.states[i] is None]

    def select_layers(self, layers: Sequence[int]) -> CacheShape:
        """The shape of some of the layers."""
        states = tuple(self.states[i] for i in layers if self.states)
        windows = tuple(self.windows[i] for i in layers if self.windows)
        numbers = tuple(self.layer_numbers[i] for i in layers)
        return self._replace(n_layers=len(layers), states=states, windows=windows, layer_ids=numbers)

    @property
    def layer_numbers(self) -> Sequence[int]:
        """The index in the model of each layer."""
        return self.layer_ids or range(self.n_layers)

    @property
    def token_bytes(self) -> int:
        """Bytes of the key and value of one token in one layer."""
        return self.n_kv_heads * (self.head_dim + self.v_dim) * self.dtype.itemsize

    def make_storage(self, rows: int, slots: int) -> tuple[Tensor, Tensor]:
        """Zeroed keys (rows, K, slots, D) and values (rows, K, slots, Dv) of one layer."""
        zeros = torch.zeros(rows, self.n_kv_heads, slots, self.head_dim, dtype=self.dtype, device=self.device)
        return zeros, zeros.new_zeros(*zeros.shape[:3], self.v_dim)


class CacheMemory(NamedTuple):
    """Memory use of a cache in bytes: allocated, used by tokens, and the peak allocation."""

    reserved_bytes: int
    used_bytes: int
    peak_bytes: int
    shared_bytes: int = 0  # bytes saved by sharing: the extra use if rows shared no slots

    @property
    def wasted_bytes(self) -> int:
        """Bytes allocated but unused."""
        return self.reserved_bytes - self.used_bytes


class LayerCache(Protocol):
    """The cache of one layer. Only attention accesses it, through this protocol."""

    # (B, ...) each, in a cache of states; attention reads it and assigns the next one
    state: tuple[Tensor, ...]

    @property
    def weights_hook(self) -> WeightsHook | None:
        """Called with the attention weights of each step; None if there is no hook."""

    def update(self, kv: KV) -> KV:
        """Store the new slots (B, K, T, D), return all that may be attended to (B, K, S, D)."""

    def select(self, rows: Tensor) -> None:
        """Row i becomes the old row ``rows[i]``: reorder, fork or drop sequences."""

    @property
    def nbytes(self) -> int:
        """Bytes of allocated storage, used or not."""


class Cache(Protocol):
    """The cache of all layers for some sequences, one per row.

    A kind of cache declares its properties as class attributes: its ``name``; ``lossless``, whether decoding
    gives the same result as without a cache; and ``rewinds``, whether a stored position may be overwritten,
    as for rejected draft tokens. Models that a kind cannot serve are rejected with the reason when the cache
    is made.
    """

    name: str
    lossless: bool
    rewinds: bool

    @property
    def block_size(self) -> int:
        """Tokens per allocation unit: those of a block, or 1."""

    @property
    def num_rows(self) -> int:
        """Number of rows, empty ones included."""

    @property
    def layers(self) -> Sequence[LayerCache]:
        """One layer cache for each decoder layer."""

    @property
    def nbytes(self) -> int:
        """Bytes of allocated storage over all layers."""

    def memory_usage(self) -> CacheMemory:
        """Bytes allocated, bytes used by tokens, and the peak."""

    def prepare_step(self, rows: Sequence[int], pos: Tensor) -> None:
        """Allocate space for row ``rows[i]`` at positions ``pos[i]``, (B, T) int64, before the first layer.

        Called once a step, with positions on any device. A position of -1 is padding and is never attended
        to. A stored position is overwritten if the cache rewinds; otherwise the tokens of a row come once
        each, in the order of their positions.
        """

    def free_tokens(self, extra_rows: int = 0) -> int:
        """Tokens that still fit, over all rows and ``extra_rows`` new ones, for the scheduler."""

    def append_rows(self, n: int) -> None:
        """Append ``n`` empty rows."""

    def fork(self, src: int, dst: int) -> None:
        """Row ``dst`` becomes a copy of row ``src``."""

    def release(self, row: int) -> None:
        """Free one row; it may be filled again from position 0."""

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes the old row ``rows[i]``; the number of rows becomes ``len(rows)``."""

    def export_rows(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """The content of some rows, between two steps: tensors by name, ``lengths`` (rows,) among them."""

    def import_rows(self, tensors: Mapping[str, Tensor]) -> None:
        """Append the rows that ``export_rows`` of a cache of the same kind, options and model returned.

        UserError if the tensors do not fit this cache, which is then unchanged.
        """


@runtime_checkable
class PrefixCache(Protocol):
    """A cache in which a row may reuse the cached prefix of earlier rows."""

    def match_prefix(self, row: int, tokens: Sequence[int]) -> int:
        """Fill an empty row with cached tokens of this prefix; return how many tokens need no prefill."""

    def insert_prefix(self, row: int, tokens: Sequence[int]) -> None:
        """Register the tokens of a row in the prefix cache, after the step that wrote them."""
