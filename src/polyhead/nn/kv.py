"""The equation of the whole project: attention over keys and values that carry their positions.

Shapes here and everywhere in the package: B batch rows, T queries, S key slots, H query heads, K key/value
heads, D head_dim, C d_model, V vocab_size. ``pos`` None stands for whole rows 0..T-1 without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from polyhead.nn.certain import certain
from polyhead.nn.rows import several_documents

Watcher = Callable[[Tensor], None]
"""Is shown the weights (B, H, T, S) of every attention it watches."""


class KV(NamedTuple):
    """All that attention may look at. Positions are data: causality, padding, windows, eviction,
    paging and relative biases read this one tensor, and a slot at position -1 is never seen."""

    k: Tensor  # (B, K, S, D)
    v: Tensor  # (B, K, S, Dv)
    pos: Tensor | None = None  # (B, 1 or K, S) int64: per head, because some caches evict per head
    log_count: Tensor | None = None  # (B, K, S): a slot may stand for many tokens
    seen: Tensor | None = None  # (B, 1|K, T or 1, S): what visible() would say, where it is known already

    def select(self, rows: Tensor) -> KV:
        """The given batch rows, in that order."""
        rest = (None if part is None else part.index_select(0, rows) for part in self[2:])
        return KV(self.k.index_select(0, rows), self.v.index_select(0, rows), *rest)

    def join(self, other: KV) -> KV:
        """The rows of both, in this order; slots that only the longer one has are empty in the other's rows.

        Those at the end that no row needs any more are gone.
        """
        there = self.positions(), other.positions()
        longest = max(int((pos >= 0).nonzero()[:, -1].amax()) + 1 for pos in there)
        k = torch.cat([F.pad(x.k, (0, 0, 0, longest - x.k.size(2))) for x in (self, other)])
        v = torch.cat([F.pad(x.v, (0, 0, 0, longest - x.v.size(2))) for x in (self, other)])
        pos = torch.cat([F.pad(pos, (0, longest - pos.size(2)), value=-1) for pos in there])
        return KV(k, v, pos)

    def positions(self) -> Tensor:
        """The position of every slot, also where all are there: (B, 1|K, S)."""
        return (
            whole(self.k.size(2), self.k.device).expand(len(self.k), 1, -1) if self.pos is None else self.pos
        )

    def kept(self) -> KV:
        """The same, laid out for being read at every step: a head's slots together, padding looked up once."""
        seen = None if self.pos is None else (self.pos >= 0)[:, :, None]
        return self._replace(k=self.k.contiguous(), v=self.v.contiguous(), seen=seen)


class Memory(Protocol):
    """What a decoder layer keeps of the source: keys and values, or whatever else its attention reads."""

    def select(self, rows: Tensor) -> Self:
        """The given batch rows, in that order."""
        ...

    def join(self, other: Self) -> Self:
        """The rows of both, in this order."""
        ...

    def kept(self) -> Self:
        """The same, laid out for being read at every step."""
        ...


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, T, H * D) -> (B, H, T, D)."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, H * D)."""
    return x.transpose(1, 2).flatten(2)


def whole(length: int, device: torch.device) -> Tensor:
    """The positions of one whole row: (1, T)."""
    return torch.arange(length, device=device)[None]


class Window(NamedTuple):
    """How far a query sees: ``size`` tokens back, itself included, and the first ``sink`` tokens of the row."""

    size: int
    sink: int = 0


def visible(q_pos: Tensor, k_pos: Tensor, causal: bool, window: Window | None = None) -> Tensor:
    """Which slots each query may see: (B, T), (B, 1|K, S) -> (B, 1|K, T or 1, S) bool.

    T is 1 where all queries see the same.
    """
    q, k = q_pos[:, None, :, None], k_pos[:, :, None, :]
    seen = k >= 0
    if causal:
        seen = seen & (k <= q)
    if window is not None:
        near = q - k < window.size
        near = near if causal else near & (k - q < window.size)
        seen = seen & (near | (k < window.sink))
    return seen


def sight(
    q_pos: Tensor | None,
    kv: KV,
    length: int,
    causal: bool,
    window: Window | None = None,
    *,
    alone: bool = False,
) -> Tensor | None:
    """The mask of ``length`` queries over kv, or None where the whole (or the plain triangle) is seen.

    ``alone``: kv are the keys and values of the queries' own tokens, which may be of several documents.
    """
    if window is None and kv.seen is not None:
        return kv.seen
    if window is None and kv.pos is None and (q_pos is None or not causal):
        return None
    k_pos = whole(kv.k.size(2), kv.k.device)[:, None] if kv.pos is None else kv.pos
    mask = visible(whole(length, kv.k.device) if q_pos is None else q_pos, k_pos, causal, window)
    return within_documents(mask, q_pos) if alone else mask


def within_documents(mask: Tensor | None, pos: Tensor | None) -> Tensor | None:
    """The mask (B, 1, T, T) of rows (B, T) over themselves, where position 0 begins a new document.

    A token sees those of its own document only; a row of one document keeps the mask it has.
    """
    if mask is None or pos is None:
        return mask
    if not several_documents(pos):
        return mask
    document = (pos == 0).cumsum(1)[:, None]
    return mask & (document[..., :, None] == document[..., None, :])


def attend(
    q: Tensor,
    kv: KV,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    values: Callable[[Tensor], Tensor | None] | None = None,
    watch: Sequence[Watcher] = (),
) -> Tensor:
    """softmax(q k^T * scale + bias) v over the slots that mask shows (Vaswani et al., 2017, eq. 1).

    ``softcap`` c bounds the products: c tanh(q k^T * scale / c) (Gemma 2, 2024). ``values`` makes of the weights
    (N, H, T, S), after dropout, what else is added: (N, H, T, Dv). Watchers see them before dropout.

    (N, H, T, D) over kv -> (N, H, T, Dv). A row that sees nothing gives 0. ``mask`` None with ``causal`` is the
    plain triangle of whole rows; without it everything is seen. N may be n times the rows B of kv: row i reads
    kv row i // n, so the beams of a sentence share one memory. A group of query heads is just more queries on
    the same keys, and so are the beams of a sentence: both fold into T, and k and v are never repeated.
    """
    # the fused kernel of the CPU cannot learn a bias, and what stands in for it is slower than this
    learned = bias is not None and bias.requires_grad and q.device.type == "cpu"
    by_hand = bool(watch) or values is not None or softcap is not None or learned or _fused_is_slow(q, kv)
    if mask is None and bias is None and kv.log_count is None and not by_hand and len(q) == len(kv.k):
        return F.scaled_dot_product_attention(
            q,
            kv.k,
            kv.v,
            is_causal=causal,
            scale=scale,
            dropout_p=dropout,
            enable_gqa=q.size(1) != kv.k.size(1),
        )
    (N, H, T, D), (B, K, S, _) = q.shape, kv.k.shape
    assert N % B == 0 and H % K == 0, f"{N} rows over {B}, {H} heads over {K}"
    n, group = N // B, H // K
    if mask is None and causal:
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril()[None, None]
    scores = _fold_scores(mask, bias, kv, (n, group, T, q.dtype))
    q = q.reshape(B, n, K, group * T, D).transpose(1, 2).reshape(B, K, n * group * T, D)
    if by_hand:
        products = q * (D**-0.5 if scale is None else scale) @ kv.k.mT
        products = products if softcap is None else products.div(softcap).tanh_().mul(softcap)
        products = products if scores is None else products.add_(scores)
        # a row that sees nothing gives 0, and its gradient is 0 as well; three more passes, so only where there is one
        blind = mask is not None and not certain(mask.any(-1).all())
        weights = torch._safe_softmax(products, -1) if blind else products.softmax(-1)
        for see in watch:
            see(unfold(weights, n, group))
        weights = F.dropout(weights, dropout)
        out = unfold(weights @ kv.v, n, group)
        more = None if values is None else values(unfold(weights, n, group))
        return out if more is None else out + more
    out = F.scaled_dot_product_attention(q, kv.k, kv.v, attn_mask=scores, scale=scale, dropout_p=dropout)
    return unfold(out, n, group)


def _fused_is_slow(q: Tensor, kv: KV) -> bool:
    """Where two plain products beat the fused kernel of the CPU, as measured in benchmarks/attention.py.

    Training in bf16 its backward pass takes seven times as long on short rows; decoding, its cost a (row, head)
    exceeds the arithmetic of a few queries. An exported graph has no such kernel, and plain products are fewer nodes.
    """
    if torch.compiler.is_exporting():
        return True
    if q.device.type != "cpu":
        return False
    if q.requires_grad:
        return q.dtype == torch.bfloat16 and kv.k.size(2) <= 256
    return q.size(2) == 1 and (len(kv.k) > 1 or q.dtype == torch.bfloat16)


def _fold_scores(
    mask: Tensor | None, bias: Tensor | None, kv: KV, shape: tuple[int, int, int, torch.dtype]
) -> Tensor | None:
    """Bias, counts and mask as one additive term, (B, 1|K, n * group * T or 1, S); -inf where nothing is seen."""
    n, group, T, dtype = shape
    scores: Tensor | None = None
    if bias is not None:
        scores = fold(bias.to(dtype).expand(-1, -1, T, -1), n, group)
    if kv.log_count is not None:
        counts = kv.log_count[:, :, None, :].to(dtype)
        scores = counts if scores is None else scores + counts
    if mask is not None:
        if mask.size(2) > 1 or (n > 1 and mask.size(0) == n * len(kv.k)):
            mask = mask.repeat_interleave(group, 1) if mask.size(1) > 1 else mask
            mask = fold(mask.expand(-1, -1, T, -1), n, group)
        zero = torch.zeros((), dtype=dtype, device=mask.device) if scores is None else scores
        scores = torch.where(mask, zero, torch.full((), float("-inf"), dtype=dtype, device=mask.device))
    return scores


def fold(x: Tensor, n: int, group: int) -> Tensor:
    """(1|N, 1|H, T, S) -> (1|B, 1|K, n * group * T, S): the layout that attend gives its queries."""
    x = x.expand(n if x.size(0) == 1 else -1, group if x.size(1) == 1 else -1, -1, -1)
    N, H, T, S = x.shape
    assert N % n == 0, f"{N} rows of bias or mask for {n} rows of queries on each row of keys"
    return (
        x.reshape(N // n, n, H // group, group * T, S)
        .transpose(1, 2)
        .reshape(N // n, H // group, n * group * T, S)
    )


def unfold(x: Tensor, n: int, group: int) -> Tensor:
    """(B, K, n * group * T, X) -> (N, H, T, X)."""
    B, K, _, X = x.shape
    return x.view(B, K, n, -1, X).transpose(1, 2).reshape(B * n, K * group, -1, X)
