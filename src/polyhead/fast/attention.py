"""Softmax attention by our own kernels: one product for queries, keys and values, and queries over slots where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from polyhead.cache.stored import Pages, Stored
from polyhead.fast.linear import PANEL, NativeLinear, Product
from polyhead.fast.native import SUFFIX, Sizes, kernels
from polyhead.fast.whole import WholeLinear
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.kv import KV, Watcher
from polyhead.nn.position.alibi import Alibi
from polyhead.nn.position.base import Position
from polyhead.nn.position.t5 import T5

# queries times slots of a head at most: more scores do not stay near, and torch, which keeps none, is faster
SQUARE = 2**17
LANES = 16  # a head's width is a multiple of it
BIASES = Alibi, T5


def can_fuse(attn: Attention) -> bool:
    """Whether the kernels serve this attention: of biases on scores they know those that depend on positions alone."""
    queries = len(attn.q_proj.weight)  # of a source, only what comes behind them is wanted
    known = (
        (attn.position.acts_on != "scores" or type(attn.position) in BIASES)
        and len({*_projections(attn)}) == 3
        and attn.q_proj.in_features % 2 == 0
    )
    return (
        known
        and kernels() is not None
        and attn.head_dim % LANES == attn.v_head_dim % LANES == queries % PANEL == 0
    )


def _projections(attn: Attention) -> tuple[nn.Linear, ...]:
    return attn.q_proj, attn.k_proj, attn.v_proj


class PackedAttention(Attention):
    """The same attention; its parameters are those of the plain one in another order."""

    def __init__(self, plain: Attention, product: Product) -> None:
        nn.Module.__init__(self)
        kept = {
            name: value
            for name, value in vars(plain).items()
            if not name.startswith("_") and name != "training"
        }
        for name, value in (kept | dict(plain.named_children())).items():
            if name not in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(self, name, value)
        given = _projections(plain)
        biases = None if plain.q_proj.bias is None else torch.cat([layer.bias for layer in given])
        qkv = product(torch.cat([layer.weight for layer in given]), biases)
        assert isinstance(qkv, NativeLinear | WholeLinear), "only kernels give some of the outputs"
        self.qkv = qkv
        self.o_proj = product(plain.o_proj.weight, plain.o_proj.bias)  # type: ignore[assignment]
        self.widths = [len(layer.weight) for layer in given]
        self.eval()

    def read(self, x: Tensor, pos: Tensor | None, memory: KV | None) -> tuple[Tensor, KV]:
        if memory is not None:
            return self.queries(self.qkv.part(x, 0, self.widths[0]), pos), memory
        q, k, v = self.qkv(x).split_with_sizes(self.widths, -1)
        return self.queries(q, pos), self.keys(k, v, pos)

    def remember(self, x: Tensor, pos: Tensor | None) -> KV:
        k, v = self.qkv.part(x, self.widths[0], self.qkv.width).split_with_sizes(self.widths[1:], -1)
        return self.keys(k, v, pos)

    def mean(
        self, q: Tensor, kv: KV, mask: Tensor | None, pos: Tensor | None, watch: Sequence[Watcher]
    ) -> Tensor:
        pages = pages_of(kv)
        triangle = mask is None and self.causal
        own_masks = mask is not None and mask.size(0) not in (1, len(pages.table))  # of rows that share keys
        pairs = (
            q.size(0)
            * q.size(1)
            * q.size(2)
            // (len(pages.table) * pages.k.size(1))
            * pages.table.size(1)
            * pages.k.size(2)
        )
        if watch or triangle or own_masks or kv.log_count is not None or pairs > SQUARE:
            return super().mean(q, kv, mask, pos, watch)
        slots = pages.table.size(1) * pages.k.size(2)
        bias = bias_of(self.position, (q.size(1), q.size(2), slots), pos, kv.pos)
        return paged(q, pages, mask, self.scale, bias, self.softcap)


def pages_of(kv: KV) -> Pages:
    """Where the slots of kv lie; a row that lies together is a page."""
    if isinstance(kv, Stored):
        return kv.pages
    return Pages(kv.k, kv.v, first_rows(len(kv.k)), lambda x: x)


@cache
def first_rows(rows: int) -> Tensor:
    """0, 1, ... (rows, 1): made once, for each layer of each step asks for it."""
    return torch.arange(rows)[:, None]


def paged(
    q: Tensor,
    pages: Pages,
    mask: Tensor | None,
    scale: float | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Softmax attention of queries (N, H, T, D) to slots where they lie -> (N, T, H * Dv), as ``nn.kv.attend``.

    ``mask`` (1|B, 1|K, 1|T, S) says what is seen; ``bias`` (1|B, H, T, S), of ``bias_of``, is added to scores, and N is B then.
    """
    found, (N, H, T, D), B, K = kernels(), q.shape, len(pages.table), pages.k.size(1)
    assert found is not None and N % B == 0, f"{N} rows of queries over {B}"
    q = q.transpose(1, 2)  # as they come out of a product
    if q.stride()[2:] != (D, 1) or (T > 1 and N > 1 and q.stride(0) != T * q.stride(1)):
        q = q.contiguous()
    k, v = (x if x.stride(3) == 1 and x.dtype == q.dtype else x.to(q.dtype).contiguous() for x in pages[:2])
    mask = mask if mask is None or mask.stride(3) == 1 else mask.contiguous()
    out = q.new_empty(N, T, H * v.size(3))
    sizes = sizes_of(pages._replace(k=k, v=v), N, T, mask)
    sizes.group, sizes.q_token = H // K, q.stride(1 if T > 1 else 0)
    sizes.scale, sizes.softcap = D**-0.5 if scale is None else scale, softcap or 0.0
    if bias is not None:
        sizes.bias_row, sizes.bias_head, sizes.bias_query = strides_of(bias)
    getattr(found, f"attend_{SUFFIX[q.dtype]}")(
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


def sizes_of(pages: Pages, rows: int, queries: int, mask: Tensor | None) -> Sizes:
    """How ``rows`` of so many queries read pages; what a head of queries is like stays open."""
    (B, n), (_, K, block, D), k, v = pages.table.shape, pages.k.shape, pages.k.stride(), pages.v.stride()
    slots = n * block if mask is None else mask.size(3)
    return Sizes(
        B, rows // B, K, 0, queries, slots, block, n, D, pages.v.size(3), 0,
        k[1], k[0], k[2], v[1], v[0], v[2], *strides_of(mask),
    )  # fmt: skip


def bias_of(
    position: Position, extent: tuple[int, int, int], pos: Tensor | None, at: Tensor | None
) -> Tensor | None:
    """What is added to scores of so many heads, queries at pos and slots at ``at``: (1|B, H, T, S) in fp32.

    Of queries and keys these schemes ask only how many there are.
    """
    heads, queries, slots = extent
    k = torch.empty(1, 1, slots, 0)
    bias = position.bias(torch.empty(1, heads, queries, 0), KV(k, k, at), pos)
    return None if bias is None else bias.float().contiguous()


def strides_of(x: Tensor | None) -> tuple[int, int, int]:
    """Of a mask or bias (1|B, 1|H, 1|T, S), from one row, head and query to the next; 0 where all have the same."""
    if x is None:
        return 0, 0, 0
    rows, heads, queries = (
        stride * (size > 1) for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True)
    )
    return rows, heads, queries
