"""What a cache must offer: one protocol for the layer that writes, one for the program that decodes.

Attention sees a ``LayerCache``, generation and serving see a ``Cache``, and neither learns which kind it holds.
A step is ``cache.begin(rows, pos)``, then ``model.decode(tokens, pos, cache, memory)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from polyhead.nn.kv import KV, Watcher, Window

StateShape = tuple[tuple[int, ...], ...]
"""What a row of a layer keeps instead of keys and values: the shapes of a constant number of numbers."""


class CacheShape(NamedTuple):
    """What a model's keys and values look like; with rows and a length it makes a cache."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    v_dim: int
    dtype: torch.dtype
    device: torch.device
    states: tuple[StateShape | None, ...] = ()
    """What each layer keeps instead of keys and values, if it does; empty: none does."""
    windows: tuple[Window | None, ...] = ()
    """How far back each layer's queries see, where the model says so; empty: as far as there is anything."""
    distances: bool = False
    """Whether scores depend on how far query and slot are apart (alibi, t5, shaw, disentangled)."""
    beside: tuple[CacheShape, ...] = ()
    """Those of other models that decode together with this one, each into a cache of its own."""

    places: tuple[int, ...] = ()
    """Which of the model's layers these are; empty: all of them."""

    @property
    def members(self) -> tuple[CacheShape, ...]:
        """What each of the models that decode together wants of a cache."""
        return self._replace(beside=()), *self.beside

    @property
    def keyed(self) -> list[int]:
        """The layers that keep keys and values; the others keep a state."""
        return [i for i in range(self.n_layers) if not self.states or self.states[i] is None]

    def of(self, layers: Sequence[int]) -> CacheShape:
        """That of some of the layers."""
        states = tuple(self.states[i] for i in layers if self.states)
        windows = tuple(self.windows[i] for i in layers if self.windows)
        places = tuple(self.numbers[i] for i in layers)
        return self._replace(n_layers=len(layers), states=states, windows=windows, places=places)

    @property
    def numbers(self) -> Sequence[int]:
        """Of each layer, the place that it has in the model."""
        return self.places or range(self.n_layers)

    @property
    def token_bytes(self) -> int:
        """Bytes of the key and value of a token in one layer."""
        return self.n_kv_heads * (self.head_dim + self.v_dim) * self.dtype.itemsize

    def storage(self, rows: int, slots: int) -> tuple[Tensor, Tensor]:
        """Keys (rows, K, slots, D) and values (rows, K, slots, Dv) of one layer, all 0."""
        zeros = torch.zeros(rows, self.n_kv_heads, slots, self.head_dim, dtype=self.dtype, device=self.device)
        return zeros, zeros.new_zeros(*zeros.shape[:3], self.v_dim)


class Memory(NamedTuple):
    """Bytes of a cache: of its storage, of the part that holds tokens, and of the greatest storage so far."""

    reserved: int
    used: int
    peak: int
    shared: int = 0  # of those used, what a row would need of its own if it shared nothing

    @property
    def wasted(self) -> int:
        """Bytes held that hold nothing."""
        return self.reserved - self.used


class LayerCache(Protocol):
    """What one layer remembers between steps. Nothing above attention knows which kind it holds."""

    # (B, ...) each, in a cache of states; attention reads it and gives the next one
    state: tuple[Tensor, ...]

    @property
    def watcher(self) -> Watcher | None:
        """Called with each step's weights; None: nobody looks."""
        ...

    def update(self, kv: KV) -> KV:
        """Store the new slots (B, K, T, D), return all that may be seen (B, K, S, D)."""
        ...

    def select(self, rows: Tensor) -> None:
        """Row i becomes what row ``rows[i]`` was: reorder, fork or drop sequences."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of storage held, used or not."""
        ...


def looked_at(kv: KV, cache: LayerCache | None, watchers: Sequence[Watcher]) -> tuple[KV, list[Watcher]]:
    """All that a layer's attention reads, new slots and those that its cache holds, and all who watch it, as the cache may."""
    if cache is None:
        return kv, [*watchers]
    kv = cache.update(kv)
    return kv, [*watchers] if cache.watcher is None else [*watchers, cache.watcher]


class Cache(Protocol):
    """What all layers remember of some sequences, a row each.

    A kind of cache states its laws as attributes of its class: ``lossless``, whether decoding gives what it gives
    without a cache, and ``rewinds``, whether a position already held may be written over, as guesses that were
    wrong are. What a kind cannot serve at all it refuses when it is made, with the reason.
    """

    lossless: bool
    rewinds: bool

    @property
    def grain(self) -> int:
        """Tokens that room is taken in at once: those of a page, or 1."""
        ...

    @property
    def layers(self) -> Sequence[LayerCache]:
        """One for each layer of the decoder."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of storage held by all layers."""
        ...

    def memory(self) -> Memory:
        """Bytes held, those of them that hold tokens, and the most that were held."""
        ...

    def begin(self, rows: Sequence[int], pos: Tensor) -> None:
        """Once a step, before any layer: make room for row ``rows[i]`` at positions ``pos[i]``, (B, T) int64.

        A position of -1 is padding and is never seen. A position already held is written over, where the cache rewinds;
        in others a row's tokens come in the order of their positions, each once.
        """
        ...

    def room(self, more: int = 0) -> int:
        """Tokens that still fit, over all rows and ``more`` new ones: all that a scheduler asks."""
        ...

    def add(self, n: int) -> None:
        """So many empty rows more, behind the others."""
        ...

    def fork(self, src: int, dst: int) -> None:
        """Row ``dst`` becomes a copy of row ``src``."""
        ...

    def release(self, row: int) -> None:
        """Forget one row; it may be filled anew from position 0."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row ``rows[i]`` was, and there are ``len(rows)`` rows from now on."""
        ...


@runtime_checkable
class KnownBeginnings(Protocol):
    """A cache in which a row may begin with what others have read before it."""

    def reuse(self, row: int, tokens: Sequence[int]) -> int:
        """Begin an empty row with tokens that are held already; how many of these need not be fed comes back."""
        ...

    def publish(self, row: int, tokens: Sequence[int]) -> None:
        """Tell the tokens of a row, after the step that wrote them."""
        ...
