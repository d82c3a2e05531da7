"""Scaled dot-product attention over keys and values that carry their positions.

Shapes here and everywhere in the package: B batch rows, T queries, S key slots, H query heads, K key/value
heads, D head_dim, C d_model, V vocab_size. ``pos`` None means full rows 0..T-1 without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from polyhead.nn.device import known_true
from polyhead.nn.override import overridable
from polyhead.nn.positions import Positions, may_have_several_documents

WeightsHook = Callable[[Tensor], None]
"""Called with the attention weights (B, H, T, S) of every attention it is registered on."""


ValueBias = Callable[[Tensor], Tensor | None]
"""Maps attention weights (N, H, T, S), after dropout, to a term added to the output: (N, H, T, Dv)."""


@dataclass(eq=False)
class KV:
    """Keys and values to attend to, with their positions.

    Causality, padding, windows, eviction, paging and relative biases all use the position tensor; a slot at
    position -1 is never attended to. A subclass may compute k and v on access, so every method reads them as
    attributes.
    """

    k: Tensor  # (B, K, S, D)
    v: Tensor  # (B, K, S, Dv)
    pos: Tensor | None = None  # (B, 1 or K, S) int64: per head, because some caches evict per head
    log_count: Tensor | None = None  # (B, K, S): log of the number of tokens that a slot represents
    mask: Tensor | None = None  # (B, 1|K, T or 1, S): the result of visible(), if already computed
    # the mask of some of the tokens as queries over all of them, (causal, window) -> (B, 1, T, S), if the
    # positions of these alone do not tell which documents they are in
    own_mask: Callable[[bool, Window | None], Tensor] | None = None
    # terms of scores, by mask and layout: layers that share a mask keep one for their backward passes
    folded_scores: dict[tuple[Any, ...], Tensor] | None = None

    def replace(self, **changes: Any) -> KV:
        """A copy with other tensors for some fields."""
        return KV(**{name: getattr(self, name) for name in KV.__dataclass_fields__} | changes)

    def select(self, rows: Tensor) -> KV:
        """Select batch rows, in the given order."""
        rest = (self.pos, self.log_count, self.mask)
        pos, log_count, mask = (None if part is None else part.index_select(0, rows) for part in rest)
        return KV(self.k.index_select(0, rows), self.v.index_select(0, rows), pos, log_count, mask)

    def cat_rows(self, other: KV) -> KV:
        """Concatenate the rows of both; missing slots of the shorter one are empty (position -1).

        Trailing slots that are empty in all rows are dropped.
        """
        positions = self.resolve_positions(), other.resolve_positions()
        longest = max(int((pos >= 0).nonzero()[:, -1].amax()) + 1 for pos in positions)
        k = torch.cat([F.pad(x.k, (0, 0, 0, longest - x.k.size(2))) for x in (self, other)])
        v = torch.cat([F.pad(x.v, (0, 0, 0, longest - x.v.size(2))) for x in (self, other)])
        pos = torch.cat([F.pad(pos, (0, longest - pos.size(2)), value=-1) for pos in positions])
        return KV(k, v, pos)

    def resolve_positions(self) -> Tensor:
        """The position of every slot, filled in for full rows: (B, 1|K, S)."""
        return (
            arange_positions(self.k.size(2), self.k.device).expand(len(self.k), 1, -1)
            if self.pos is None
            else self.pos
        )

    def contiguous_for_decoding(self) -> KV:
        """The same in a contiguous layout for repeated reading, with the padding mask precomputed."""
        mask = None if self.pos is None else (self.pos >= 0)[:, :, None]
        return self.replace(k=self.k.contiguous(), v=self.v.contiguous(), mask=mask)


def _flatten(kv: KV) -> tuple[list[Tensor | None], None]:
    return [kv.k, kv.v, kv.pos, kv.log_count, kv.mask], None


# torch.export and tree_map see a KV as its tensors
register_pytree_node(KV, _flatten, lambda tensors, _: KV(*tensors))


GatherKV = Callable[[KV], KV]
"""Gathers the keys and values of all tokens of rows whose tokens are sharded over ranks."""


class EncoderMemory(Protocol):
    """What a decoder layer stores of the source: keys and values, or another state for its attention."""

    def select(self, rows: Tensor) -> Self:
        """Select batch rows, in the given order."""

    def cat_rows(self, other: Self) -> Self:
        """Concatenate the rows of both."""

    def contiguous_for_decoding(self) -> Self:
        """The same in a layout for reading at every step."""


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, T, H * D) -> (B, H, T, D)."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, H * D)."""
    return x.transpose(1, 2).flatten(2)


def arange_positions(length: int, device: torch.device) -> Tensor:
    """The positions of one full row: (1, T)."""
    return torch.arange(length, device=device)[None]


class Window(NamedTuple):
    """A local attention window: ``size`` tokens back, its own included, and the row's first ``sink``."""

    size: int
    sink: int = 0


def visible(q_pos: Tensor, k_pos: Tensor, causal: bool, window: Window | None = None) -> Tensor:
    """The slots that each query may attend to: (B, T), (B, 1|K, S) -> (B, 1|K, T or 1, S) bool.

    T is 1 where the mask is the same for all queries.
    """
    q, k = q_pos[:, None, :, None], k_pos[:, :, None, :]
    mask = k >= 0
    if causal:
        mask = mask & (k <= q)
    if window is not None:
        in_window = q - k < window.size
        in_window = in_window if causal else in_window & (k - q < window.size)
        mask = mask & (in_window | (k < window.sink))
    return mask


def attention_mask(
    q_pos: Tensor | None,
    kv: KV,
    length: int,
    causal: bool,
    window: Window | None = None,
    own_tokens_only: bool = False,
    documents: Positions | None = None,
) -> Tensor | None:
    """The mask of ``length`` queries over kv; None for no mask, or for the plain causal triangle.

    ``own_tokens_only``: kv are the keys and values of the queries' own tokens, possibly of several documents.
    """
    if own_tokens_only and kv.own_mask is not None:
        return kv.own_mask(causal, window)
    if window is None and kv.mask is not None:
        return kv.mask
    if window is None and kv.pos is None and (q_pos is None or not causal):
        return None
    k_pos = arange_positions(kv.k.size(2), kv.k.device)[:, None] if kv.pos is None else kv.pos
    mask = visible(arange_positions(length, kv.k.device) if q_pos is None else q_pos, k_pos, causal, window)
    return mask_other_documents(mask, q_pos, documents) if own_tokens_only else mask


def mask_other_documents(
    mask: Tensor | None, pos: Tensor | None, documents: Positions | None = None
) -> Tensor | None:
    """Restrict the mask (B, 1, T, T) of packed rows (B, T) to documents, which start at position 0.

    A token attends only to its own document; rows of one document keep their mask.
    """
    if mask is None or pos is None:
        return mask
    if not may_have_several_documents(pos, documents):
        return mask
    document = (pos == 0).cumsum(1)[:, None]
    return mask & (document[..., :, None] == document[..., None, :])


@overridable  # in training on a CPU: one kernel (kernels.training.mode)
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
    value_bias: ValueBias | None = None,
    hooks: Sequence[WeightsHook] = (),
) -> Tensor:
    """softmax(q k^T * scale + bias) v over the slots that the mask allows (Vaswani et al., 2017, eq. 1).

    ``softcap`` c bounds the products: c tanh(q k^T * scale / c) (Gemma 2, 2024). ``value_bias`` maps the
    weights (N, H, T, S), after dropout, to a term added to the output: (N, H, T, Dv). Hooks are called with
    the weights before dropout.

    (N, H, T, D) over kv -> (N, H, T, Dv). A query without visible slots gives 0. ``mask`` None with
    ``causal`` is the plain triangle over full rows; without it everything is visible. N may be a multiple n
    of the rows B of kv: row i attends to kv row i // n, so the beams of a sentence share one memory. Query
    heads that share a key head, and beams that share a row, are folded into T, so k and v are never repeated.
    """
    # the fused CPU kernel has no gradient for a bias, and its fallback is slower than this
    has_learned_bias = bias is not None and bias.requires_grad and q.device.type == "cpu"
    by_hand = (
        bool(hooks)
        or value_bias is not None
        or softcap is not None
        or has_learned_bias
        or _prefer_math_attention(q, kv)
    )
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
    # heads of a group and beams of a sentence become more queries of one key head, so k and v are not copied
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
        # safe softmax gives fully masked rows 0 and gradient 0; three more passes, so only if there is one
        blind = mask is not None and not known_true(mask.any(-1).all())
        weights = torch.ops.aten._safe_softmax(products, -1) if blind else products.softmax(-1)
        for see in hooks:
            see(unfold_groups(weights, n, group))
        weights = F.dropout(weights, dropout)
        out = unfold_groups(weights @ kv.v, n, group)
        value_term = None if value_bias is None else value_bias(unfold_groups(weights, n, group))
        return out if value_term is None else out + value_term
    out = F.scaled_dot_product_attention(q, kv.k, kv.v, attn_mask=scores, scale=scale, dropout_p=dropout)
    return unfold_groups(out, n, group)


def _prefer_math_attention(q: Tensor, kv: KV) -> bool:
    """Whether two plain products are faster than the fused CPU kernel (./dev bench kernels attention).

    In bf16 training its backward pass takes seven times as long on short rows; in decoding, its overhead per
    (row, head) exceeds the arithmetic of a few queries. Exported graphs have no such kernel, and the products
    take fewer nodes.
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
    """Bias, counts and mask as one additive term, (B, 1|K, n * group * T or 1, S); -inf where masked."""
    key, shared = (id(mask), *shape), kv.folded_scores if bias is None else None
    if shared and key in shared:
        return shared[key]
    n, group, T, dtype = shape
    scores: Tensor | None = None
    if bias is not None:
        scores = fold_groups(bias.to(dtype).expand(-1, -1, T, -1), n, group)
    if kv.log_count is not None:
        counts = kv.log_count[:, :, None, :].to(dtype)
        scores = counts if scores is None else scores + counts
    if mask is not None:
        if mask.size(2) > 1 or (n > 1 and mask.size(0) == n * len(kv.k)):
            mask = mask.repeat_interleave(group, 1) if mask.size(1) > 1 else mask
            mask = fold_groups(mask.expand(-1, -1, T, -1), n, group)
        zero = torch.zeros((), dtype=dtype, device=mask.device) if scores is None else scores
        scores = torch.where(mask, zero, torch.full((), float("-inf"), dtype=dtype, device=mask.device))
        if shared is not None:
            shared[key] = scores
    return scores


def fold_groups(x: Tensor, n: int, group: int) -> Tensor:
    """(1|N, 1|H, T, S) -> (1|B, 1|K, n * group * T, S): the layout of queries in ``attend``."""
    x = x.expand(n if x.size(0) == 1 else -1, group if x.size(1) == 1 else -1, -1, -1)
    N, H, T, S = x.shape
    assert N % n == 0, f"{N} rows of bias or mask for {n} rows of queries on each row of keys"
    return (
        x.reshape(N // n, n, H // group, group * T, S)
        .transpose(1, 2)
        .reshape(N // n, H // group, n * group * T, S)
    )


def unfold_groups(x: Tensor, n: int, group: int) -> Tensor:
    """(B, K, n * group * T, X) -> (N, H, T, X)."""
    B, K, _, X = x.shape
    return x.view(B, K, n, -1, X).transpose(1, 2).reshape(B * n, K * group, -1, X)
