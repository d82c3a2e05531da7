"""The cache of projected keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from polyhead.cache.base import CacheShape, Memory
from polyhead.cache.make import make_cache
from polyhead.cache.static import StaticCache, StaticLayer
from polyhead.errors import UserError
from polyhead.files import replace_file
from polyhead.nn.kv import KV, Watcher
from polyhead.registry import CACHE, Choice

ROWS = 8  # rows of a text that are read together


class Bases(NamedTuple):
    """Orthonormal directions of one layer, the strongest first: of keys (K, D, r) and of values (K, Dv, r)."""

    k: Tensor
    v: Tensor


@CACHE.register("low_rank")
class LowRankCache:
    """Keys and values by their ``rank`` strongest directions, found in a text.

    Each head of each layer has directions of its own, those of its keys and those of its values that lose least of the
    text they were fitted on (``polyhead.cache.low_rank.fit_low_rank`` writes them to a file). Without a file they are fitted
    on the first step, all its rows together, so outputs depend on what is decoded together; a first step of fewer tokens
    than directions, as the one begin token of a translation, is refused. A rank of the head's width keeps everything.

    Equation: what is kept is k P and v R, what is read is k P Pᵀ and v R Rᵀ;  P: first eigenvectors of Σ k kᵀ, R: of Σ v vᵀ
    Paper: Saxena et al., 2024 (Eigen Attention), sec. 3.2
    When: a file was fitted on text like one's own, and heads are wider than what they say
    Recipe: generation: {cache: {name: low_rank, rank: 32}}
    Options:
      rank: directions kept of a head's keys, and of its values
      projection: file of directions that fit_low_rank wrote for this model, of this rank at least
      chunk: slots by which storage grows, or an eighth of it, whichever is more
    """

    lossless, rewinds, grain = False, True, 1

    def __init__(
        self,
        shape: CacheShape,
        n_rows: int,
        max_len: int,
        *,
        rank: int = 32,
        projection: str | None = None,
        chunk: int = 8,
    ) -> None:
        if any(shape.states):
            raise UserError(
                "cache 'low_rank' keeps keys and values, this model keeps a state: use cache 'state'"
            )
        if rank < 1:
            raise UserError(f"cache 'low_rank': rank is {rank}, wanted at least 1")
        ranks = min(rank, shape.head_dim), min(rank, shape.v_dim)
        small = shape._replace(head_dim=ranks[0], v_dim=ranks[1])
        self.inner = StaticCache(small, n_rows, max_len, chunk=chunk)
        bases: Sequence[Bases | None] = [None] * shape.n_layers
        if projection is not None:
            bases = read_bases(projection, shape, ranks)
        elif ranks == (shape.head_dim, shape.v_dim):
            k, v = (
                torch.eye(r, dtype=shape.dtype, device=shape.device).expand(shape.n_kv_heads, r, r)
                for r in ranks
            )
            bases = [Bases(k, v)] * shape.n_layers
        self.layers = [
            LowRankLayer(inner, b, ranks) for inner, b in zip(self.inner.layers, bases, strict=True)
        ]
        self.begin, self.room, self.add = self.inner.begin, self.inner.room, self.inner.add
        self.fork, self.release, self.select = self.inner.fork, self.inner.release, self.inner.select

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes + self._bases()

    def memory(self) -> Memory:
        """Directions are used whole."""
        return Memory(*(x + self._bases() for x in self.inner.memory()[:3]))

    def _bases(self) -> int:
        return sum(x.untyped_storage().nbytes() for layer in self.layers for x in layer.bases or ())


class LowRankLayer:
    """Projects on the way into a layer of slots, and back on the way out."""

    state: tuple[Tensor, ...] = ()

    def __init__(self, inner: StaticLayer, bases: Bases | None, ranks: tuple[int, int]) -> None:
        self.inner, self.bases, self.ranks = inner, bases, ranks
        self.watcher: Watcher | None = None
        self.select = inner.select

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes + sum(x.untyped_storage().nbytes() for x in self.bases or ())

    def update(self, kv: KV) -> KV:
        """(B, K, T, D) in, (B, K, S, D) out."""
        if self.bases is None:
            assert self.inner.step is not None, "begin() comes before update()"
            self.bases = fitted(kv, self.inner.step.padding, self.ranks)
        P, R = self.bases
        held = self.inner.update(kv._replace(k=kv.k.to(P.dtype) @ P, v=kv.v.to(R.dtype) @ R))
        return held._replace(k=held.k @ P.mT, v=held.v @ R.mT)


def fitted(kv: KV, padding: Tensor | None, ranks: tuple[int, int]) -> Bases:
    """The directions of one step, (B, 1, T, 1) of whose tokens are padding."""
    tokens = kv.k.size(0) * kv.k.size(2) - (0 if padding is None else int(padding.sum()))
    if tokens < max(ranks):
        raise UserError(
            f"cache 'low_rank' wants to find {max(ranks)} directions in the first step, which has {tokens} tokens: give "
            "projection, a file that polyhead.cache.low_rank.fit_low_rank writes, or a longer prompt"
        )
    parts = (x if padding is None else x.masked_fill(padding, 0) for x in (kv.k, kv.v))
    return Bases(*(strongest(moment(x), r).to(x) for x, r in zip(parts, ranks, strict=True)))


def moment(x: Tensor) -> Tensor:
    """Sums of x xᵀ over rows and tokens, (B, K, T, D) -> (K, D, D) fp64."""
    x = x.detach().double()
    return (x.mT @ x).sum(0)


def strongest(moments: Tensor, rank: int) -> Tensor:
    """The eigenvectors of the greatest eigenvalues, greatest first: (K, D, D) -> (K, D, rank)."""
    return torch.linalg.eigh(moments)[1].flip(-1)[..., :rank]


@torch.no_grad()
def fit_low_rank(
    model: Any,
    tokens: Tensor,
    rank: int,
    path: str | Path,
    *,
    pos: Tensor | None = None,
    source: tuple[Tensor, Tensor | None] | None = None,
) -> list[Bases]:
    """Write the ``rank`` strongest directions of keys and values over a text to a safetensors file, and return them.

    ``tokens`` (N, T) are rows of the text as a decoder reads them, at ``pos`` (N, T), -1 at padding; None is whole rows. An
    encoder-decoder also needs its ``source``, tokens (N, S) and their positions or None. A file serves any smaller rank.
    """
    shape: CacheShape = model.cache_shape
    if not shape.keyed:
        raise UserError("this model keeps a state: it has no keys and values to project")
    if pos is None:
        pos = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    if rank < 1 or int((pos >= 0).sum()) < rank:
        raise UserError(
            f"{rank} directions in {int((pos >= 0).sum())} tokens: wanted 1 or more, and no fewer tokens"
        )
    sums: list[list[Tensor]] = []
    for i in range(0, len(tokens), ROWS):
        some, at = tokens[i : i + ROWS], pos[i : i + ROWS]
        memory = (
            None if source is None else model.encode(*(x if x is None else x[i : i + ROWS] for x in source))
        )
        cache = make_cache(Choice("static"), shape, len(some), tokens.size(1))
        cache.begin(range(len(some)), at)
        model.decode(some, at, cache, memory)
        held: list[Any] = [cache.layers[i] for i in shape.keyed]
        seen = [[moment(x) for x in (layer.k, layer.v)] for layer in held]  # slots of no token are 0
        sums = (
            [[a + b for a, b in zip(*both, strict=True)] for both in zip(sums, seen, strict=True)]
            if sums
            else seen
        )
    found = [Bases(*(strongest(x, min(rank, x.size(-1))).float() for x in layer)) for layer in sums]
    named = {
        f"layers.{i}.{name}": x
        for i, b in zip(shape.keyed, found, strict=True)
        for name, x in b._asdict().items()
    }
    replace_file(Path(path), save({name: x.contiguous().cpu() for name, x in named.items()}))
    return found


def read_bases(path: str | Path, shape: CacheShape, ranks: tuple[int, int]) -> list[Bases]:
    """The directions of a file, each layer's first ones."""
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cache 'low_rank': projection {str(path)!r} cannot be read: {error}") from error
    sizes = (shape.head_dim, shape.v_dim)
    layers = []
    for i in shape.numbers:
        both = []
        for name, size, rank in zip("kv", sizes, ranks, strict=True):
            x = found.pop(f"layers.{i}.{name}", None)
            if x is None or x.dim() != 3 or x.shape[:2] != (shape.n_kv_heads, size) or x.size(2) < rank:
                what = "nothing" if x is None else f"shape {tuple(x.shape)}"
                raise UserError(
                    f"cache 'low_rank': projection {str(path)!r} has {what} for layers.{i}.{name}, wanted "
                    f"{(shape.n_kv_heads, size, rank)} or more in the last place: fit it on this model"
                )
            both.append(x[..., :rank].to(shape.device, shape.dtype).contiguous())
        layers.append(Bases(*both))
    if found:
        raise UserError(
            f"cache 'low_rank': projection {str(path)!r} is of another model: it also has {min(found)}"
        )
    return layers
