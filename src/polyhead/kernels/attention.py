"""Softmax attention with our kernels: one QKV product, and attention over pages in place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from polyhead.cache.paged_layer import PagedKV, PagedView
from polyhead.kernels.build_extension import DTYPE_SUFFIX, AttentionSizes, load_kernels
from polyhead.kernels.int_linear import Int8Linear
from polyhead.kernels.linear import PANEL, LinearFactory, NativeLinear
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.cache import LayerCache
from polyhead.nn.kv import KV, WeightsHook, attend, attention_mask, merge_heads, split_heads
from polyhead.nn.position.base import Position
from polyhead.nn.position.relative import Alibi, T5Bias
from polyhead.nn.positions import Positions

# maximum number of queries times slots per head: more scores do not fit the CPU cache, and torch, which does
# not store them, is faster
MAX_SCORES = 2**17
_HEAD_LANES = 16  # head dimensions must be multiples of this
_FUSED_BIASES = Alibi, T5Bias


def can_fuse(attn: Attention) -> bool:
    """Whether the kernels support this attention; of score biases only those that depend on positions."""
    # cross-attention projects the source only to the outputs after the queries
    queries = len(attn.q_proj.weight)
    is_known = (
        (attn.position.kind != "scores" or type(attn.position) in _FUSED_BIASES)
        and len({*_projections(attn)}) == 3  # neither shared nor left out
        and attn.k_proj.in_features == attn.q_proj.in_features
        and attn.q_proj.in_features % 2 == 0
    )
    return (
        is_known
        and load_kernels() is not None
        and attn.head_dim % _HEAD_LANES == attn.v_head_dim % _HEAD_LANES == queries % PANEL == 0
    )


def _projections(attn: Attention) -> tuple[nn.Linear, ...]:
    return attn.q_proj, attn.k_proj, attn.v_proj


class PackedAttention(Attention):
    """Softmax attention with packed projections: q, k and v in one product."""

    def __init__(self, attn: Attention, factory: LinearFactory) -> None:
        nn.Module.__init__(self)
        attributes = {
            name: value
            for name, value in vars(attn).items()
            if not name.startswith("_") and name != "training"
        }
        for name, value in (attributes | dict(attn.named_children())).items():
            if name not in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(self, name, value)
        projections = _projections(attn)
        biases = None if attn.q_proj.bias is None else torch.cat([layer.bias for layer in projections])
        qkv = factory(torch.cat([layer.weight for layer in projections]), biases)
        assert isinstance(qkv, NativeLinear | Int8Linear), "some outputs require kernels"
        self.qkv = qkv
        self.o_proj = factory(attn.o_proj.weight, attn.o_proj.bias)  # type: ignore[assignment]
        self.widths = [len(layer.weight) for layer in projections]
        self.eval()

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: KV | None = None,
        position: Position | None = None,
        documents: Positions | None = None,
    ) -> Tensor:
        position = self.position if position is None else position
        if memory is None:
            q, k, v = self.qkv(x).split_with_sizes(self.widths, -1)
            kv = self.make_kv(k, v, pos, position)
        else:
            q, kv = self.qkv.forward_slice(x, 0, self.widths[0]), memory
        q = position.rotate(self.q_norm(split_heads(q, self.head_dim)), pos)
        hooks: Sequence[WeightsHook] = self.weights_hooks
        if cache is not None:
            kv = cache.update(kv)
            hooks = hooks if cache.weights_hook is None else [*hooks, cache.weights_hook]
        own_tokens_only, window = memory is None and cache is None, self.window if memory is None else None
        mask = attention_mask(pos, kv, x.size(1), self.causal, window, own_tokens_only, documents)
        pages, (N, H, T, _) = paged_view_of(kv), q.shape
        slots = pages.table.size(1) * pages.k.size(2)
        n_scores = N * H * T // (len(pages.table) * pages.k.size(1)) * slots
        is_triangle = mask is None and self.causal
        # masks that differ between rows with the same keys
        has_own_masks = mask is not None and mask.size(0) not in (1, len(pages.table))
        if hooks or is_triangle or has_own_masks or kv.log_count is not None or n_scores > MAX_SCORES:
            bias = position.scores(q, kv, pos, self.scale, self.project_qk)
            scale, softcap = self.scale, self.softcap
            heads = attend(q, kv, mask, bias, causal=self.causal, scale=scale, softcap=softcap, hooks=hooks)
            out = merge_heads(heads)
        else:
            bias = score_bias(position, (H, T, slots), pos, kv.pos)
            out = paged_attention(q, pages, mask, self.scale, bias, self.softcap)
        projected: Tensor = self.o_proj(out)
        return projected

    def project_kv(self, x: Tensor, pos: Tensor | None, position: Position | None = None) -> KV:
        k, v = self.qkv.forward_slice(x, self.widths[0], self.qkv.out_features).split_with_sizes(
            self.widths[1:], -1
        )
        return self.make_kv(k, v, pos, self.position if position is None else position)

    def make_kv(self, k: Tensor, v: Tensor, pos: Tensor | None, position: Position) -> KV:
        """(B, S, K * D), (B, S, K * Dv), (B, S) -> keys and values."""
        k = position.rotate(self.k_norm(split_heads(k, self.head_dim)), pos)
        return KV(k, split_heads(v, self.v_head_dim), None if pos is None else pos[:, None])


def paged_view_of(kv: KV) -> PagedView:
    """View of kv as pages; a contiguous row is one page."""
    if isinstance(kv, PagedKV):
        return kv.pages
    return PagedView(kv.k, kv.v, identity_page_table(len(kv.k)), lambda x: x)


@cache
def identity_page_table(rows: int) -> Tensor:
    """0, 1, ... (rows, 1); cached, because each layer of each step needs it."""
    return torch.arange(rows)[:, None]


def paged_attention(
    q: Tensor,
    pages: PagedView,
    mask: Tensor | None,
    scale: float | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Softmax attention of queries (N, H, T, D) over slots in place -> (N, T, H * Dv), like ``nn.kv.attend``.

    ``mask`` (1|B, 1|K, 1|T, S) is True at visible slots. ``bias`` (1|B, H, T, S), of ``score_bias``, is added
    to scores; N must equal B then.
    """
    kernels, (N, H, T, D), B, K = load_kernels(), q.shape, len(pages.table), pages.k.size(1)
    assert kernels is not None and N % B == 0, f"{N} rows of queries over {B}"
    q = q.transpose(1, 2)  # the layout of the projection's output
    if q.stride()[2:] != (D, 1) or (T > 1 and N > 1 and q.stride(0) != T * q.stride(1)):
        q = q.contiguous()
    k, v = (x if x.stride(3) == 1 and x.dtype == q.dtype else x.to(q.dtype).contiguous() for x in pages[:2])
    mask = mask if mask is None or mask.stride(3) == 1 else mask.contiguous()
    out = q.new_empty(N, T, H * v.size(3))
    sizes = attention_sizes(pages._replace(k=k, v=v), N, T, mask)
    sizes.group, sizes.q_token = H // K, q.stride(1 if T > 1 else 0)
    sizes.scale, sizes.softcap = D**-0.5 if scale is None else scale, softcap or 0.0
    if bias is not None:
        sizes.bias_row, sizes.bias_head, sizes.bias_query = broadcast_strides(bias)
    getattr(kernels, f"attend_{DTYPE_SUFFIX[q.dtype]}")(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        None if mask is None else mask.data_ptr(),
        None if bias is None else bias.data_ptr(),
        pages.table.data_ptr(),
        sizes,
    )
    return out


def attention_sizes(pages: PagedView, rows: int, queries: int, mask: Tensor | None) -> AttentionSizes:
    """Sizes and strides for rows of queries over pages; the caller sets group, q_token and scale."""
    (B, n), (_, K, block, D), k, v = pages.table.shape, pages.k.shape, pages.k.stride(), pages.v.stride()
    slots = n * block if mask is None else mask.size(3)
    return AttentionSizes(
        B, rows // B, K, 0, queries, slots, block, n, D, pages.v.size(3), 0,
        k[1], k[0], k[2], v[1], v[0], v[2], *broadcast_strides(mask),
    )  # fmt: skip


def score_bias(
    position: Position, score_shape: tuple[int, int, int], pos: Tensor | None, slot_pos: Tensor | None
) -> Tensor | None:
    """Bias of a position scheme for queries at ``pos`` and slots at ``slot_pos``: (1|B, H, T, S) fp32.

    ``score_shape`` is (H, T, S). These schemes use only the number of queries and keys, not their values.
    """
    heads, queries, slots = score_shape
    k = torch.empty(1, 1, slots, 0)
    bias = position.bias(torch.empty(1, heads, queries, 0), KV(k, k, slot_pos), pos)
    return None if bias is None else bias.float().contiguous()


def broadcast_strides(x: Tensor | None) -> tuple[int, int, int]:
    """Strides of rows, heads and queries of a mask or bias (1|B, 1|H, 1|T, S); 0 for broadcast dimensions."""
    if x is None:
        return 0, 0, 0
    rows, heads, queries = (
        stride * (size > 1) for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True)
    )
    return rows, heads, queries
