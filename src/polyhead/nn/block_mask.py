"""Attention of packed documents in blocks: FlexAttention skips those in which no query sees a key.

Paper: Dong et al., 2024
Shapes: n blocks of ``BLOCK_SIZE`` slots in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from polyhead.nn.device import is_traced, product_dtype
from polyhead.nn.kv import KV
from polyhead.nn.positions import Positions, Visibility, may_have_several_documents

BLOCK_SIZE = 128
BLOCK_MASK_DEVICES = {"cuda"}
"""Devices with kernels for block masks, forward and backward."""
BLOCK_MASK_DTYPES = {torch.bfloat16, torch.float16}
HEAD_DIMS = range(16, 257)
"""Widths of a head that these kernels take."""
_DOCUMENT_BITS = 32  # the key of a token is the number of its document, then its position in these bits
_FAR_KEY = 1 << 61


def make_block_masks(
    x: Tensor, documents: Positions, visibilities: Iterable[Visibility]
) -> dict[Visibility, BlockMask]:
    """The block masks of packed documents (B, T), for compiled layers over x (B, T, C): a graph makes none.

    Layers with the same visibility share one. There is none on other devices, in fp32, and where nothing can
    be skipped: in rows of one document or one block.
    """
    found = set(visibilities) if _can_skip(x, documents) else set()
    return {
        visibility: make_block_mask(documents.pos.expand(x.shape[:2]), visibility) for visibility in found
    }


def find_block_mask(masks: Mapping[Visibility, BlockMask], visibility: Visibility | None) -> BlockMask | None:
    """In a graph, the block mask of these that fits a layer, if there is one.

    Outside of graphs FlexAttention would compute all weights.
    """
    return masks.get(visibility) if visibility is not None and is_traced() else None


def make_block_mask(pos: Tensor, visibility: Visibility) -> BlockMask:
    """The block mask of packed rows, from their positions (B, T): no mask of T x T is made, nothing is read.

    A token sees what ``visible`` allows in its own document. Padding sees nothing and is not seen. Rows whose
    tokens are in order visit only blocks with a visible key; others may visit more.
    """
    causal, window, sink = visibility
    document, place, length = (pos == 0).cumsum(1), pos.int(), pos.size(1)
    q_document, k_document = (document.masked_fill(pos < 0, hole).int() for hole in (-1, -2))
    # tensors: numbers that differ between layers would be variables of their graph, which no kernel reads
    near = None if window is None else (place - (window - 1), place + (window - 1))
    is_sink = place < sink

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = q_document[b, q] == k_document[b, k]
        if causal:
            seen = seen & (place[b, k] <= place[b, q])
        if near is not None:
            is_near = (place[b, k] >= near[0][b, q]) & (place[b, k] <= near[1][b, q])
            seen = seen & (is_near | is_sink[b, k])
        return seen

    some, every = _compare_blocks(pos, document, visibility)
    partial = some & ~every
    return BlockMask(
        (length, length),
        *_list_blocks(partial),
        *_list_blocks(every),
        *_list_blocks(partial.mT),
        *_list_blocks(every.mT),
        BLOCK_SIZE=(BLOCK_SIZE, BLOCK_SIZE),
        mask_mod=sees,
    )


def attend_blocks(
    q: Tensor, kv: KV, mask: BlockMask, *, scale: float | None = None, softcap: float | None = None
) -> Tensor:
    """``attend`` by FlexAttention: (B, H, T, D) over kv -> (B, H, T, Dv)."""

    def bound_score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    dtype = product_dtype(q)
    out = flex_attention(
        q.to(dtype),
        kv.k.to(dtype),
        kv.v.to(dtype),
        score_mod=None if softcap is None else bound_score,
        block_mask=mask,
        scale=scale,
        enable_gqa=q.size(1) != kv.k.size(1),
    )
    assert isinstance(out, Tensor)
    return out


def _can_skip(x: Tensor, documents: Positions) -> bool:
    return (
        x.device.type in BLOCK_MASK_DEVICES
        and product_dtype(x) in BLOCK_MASK_DTYPES
        and documents.pos.size(1) > BLOCK_SIZE
        and may_have_several_documents(documents.pos, documents)
    )


def _compare_blocks(pos: Tensor, document: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
    """Whether some query of a block sees some key of another, and whether all see all: (B, 1, n, n) twice.

    From the first and last token of each block, in the order of documents and positions.
    """
    causal, window, sink = visibility
    pad = (0, -pos.size(1) % BLOCK_SIZE)
    place = F.pad(pos, pad, value=-1).unflatten(1, (-1, BLOCK_SIZE))
    key = (F.pad(document, pad).unflatten(1, (-1, BLOCK_SIZE)) << _DOCUMENT_BITS) + place

    def extent(tokens: Tensor) -> tuple[Tensor, Tensor]:
        return key.masked_fill(~tokens, _FAR_KEY).amin(-1), key.masked_fill(~tokens, -_FAR_KEY).amax(-1)

    first, last = extent(place >= 0)
    q_first, q_last, k_first, k_last = first[:, :, None], last[:, :, None], first[:, None], last[:, None]
    some = _share_documents((q_first, q_last), (k_first, k_last))
    every = (place >= 0).all(-1)
    every = every[:, :, None] & every[:, None] & (_document(q_first) == _document(k_last))
    every = every & (_document(q_last) == _document(k_first))
    if causal:
        some, every = some & (k_first <= q_last), every & (k_last <= q_first)
    if window is not None:
        some_near, all_near = q_first - k_last < window, q_last - k_first < window
        if not causal:
            some_near = some_near & (k_first - q_last < window)
            all_near = all_near & (k_last - q_first < window)
        if sink:
            sinks = (place >= 0) & (place < sink)
            sink_first, sink_last = (end[:, None] for end in extent(sinks))
            some_near = some_near | _share_documents((q_first, q_last), (sink_first, sink_last))
            all_near = all_near | sinks.all(-1)[:, None]
        some, every = some & some_near, every & all_near
    return some[:, None], every[:, None]


def _share_documents(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """Whether the documents of two extents overlap."""
    return (_document(one[0]) <= _document(other[1])) & (_document(other[0]) <= _document(one[1]))


def _document(key: Tensor) -> Tensor:
    return key >> _DOCUMENT_BITS


def _list_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of true blocks of each row, and the indices of all, those first: (B, 1, n), (B, 1, n, n)."""
    # contiguous, as the kernels read them
    numbers = blocks.int().contiguous()
    return numbers.sum(-1, dtype=torch.int32), torch.argsort(
        numbers, dim=-1, descending=True, stable=True
    ).int()
