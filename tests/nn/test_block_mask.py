"""Attention of packed documents in blocks against every pair of tokens looked at by itself."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from polyhead.config.model import AttentionShape
from polyhead.core.choice import Choice
from polyhead.core.registry import ATTENTION, POSITION
from polyhead.nn import block_mask
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.block_mask import (
    Visibility,
    attend_blocks,
    find_block_mask,
    make_block_mask,
    note_block_masks,
)
from polyhead.nn.kv import KV, Window, attend, attention_mask

VISIBILITIES = [  # also windows that end where a block does
    Visibility(True),
    Visibility(True, 9),
    Visibility(True, 15),
    Visibility(True, 5, 2),
    Visibility(False),
    Visibility(False, 7),
    Visibility(False, 9),
    Visibility(False, 15),
    Visibility(False, 5, 20),
]
SIZE = 8  # of a block
DOCUMENTS = [[1, 9, 3, 32, 2, 13], [35, 32], [8, 8, 8, 5], [65]]  # the last rows end with padding
LENGTH = 67


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """And operations that are run one by one."""
    monkeypatch.setattr(block_mask, "BLOCK_SIZE", SIZE)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def packed(rows: list[list[int]], length: int = LENGTH) -> Tensor:
    """Documents of these lengths, one after another, with padding where they end early."""
    pos = torch.full((len(rows), length), -1)
    for row, lengths in zip(pos, rows, strict=True):
        places = [t for n in lengths for t in range(n)][:length]
        row[: len(places)] = torch.tensor(places)
    return pos


def pairs_seen(pos: Tensor, visibility: Visibility) -> Tensor:
    """(B, T, T): each pair of tokens looked at by itself."""
    causal, window, sink = visibility
    seen = np.zeros((*pos.shape, pos.size(1)), dtype=bool)
    for row, places in zip(seen, pos.tolist(), strict=True):
        document = np.cumsum(np.array(places) == 0)
        for q, q_pos in enumerate(places):
            for k, k_pos in enumerate(places):
                if q_pos < 0 or k_pos < 0 or document[q] != document[k] or (causal and k_pos > q_pos):
                    continue
                is_near = window is None or (q_pos - k_pos < window and k_pos - q_pos < window)
                row[q, k] = is_near or k_pos < sink
    return torch.from_numpy(seen)


def tiles(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a tile has some visible pair, and whether it has nothing else: (B, n, n)."""
    pad = -seen.size(1) % SIZE
    cut = F.pad(seen, (0, pad, 0, pad)).unflatten(2, (-1, SIZE)).unflatten(1, (-1, SIZE))
    return cut.any(4).any(2), cut.all(4).all(2)


def inputs(pos: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, KV]:
    """Four heads of queries on two of keys, with wider values."""
    draw = torch.Generator().manual_seed(0)
    sizes = [(len(pos), heads, pos.size(1), width) for heads, width in ((4, 16), (2, 16), (2, 24))]
    q, k, v = (torch.randn(size, generator=draw, dtype=dtype) for size in sizes)
    return q, KV(k, v, pos[:, None])


def by_hand(q: Tensor, kv: KV, seen: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v; 0 where nothing is seen."""
    k, v = (x.repeat_interleave(2, 1) for x in (kv.k, kv.v))
    weights = (q @ k.mT / 4).masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    return weights.nan_to_num() @ v


@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
def test_blocks_give_what_the_dense_mask_gives(visibility: Visibility) -> None:
    pos = packed(DOCUMENTS)
    q, kv = inputs(pos)
    seen, is_token = pairs_seen(pos, visibility), (pos >= 0)[:, None, :, None]
    window = None if visibility.window is None else Window(*visibility[1:])
    mask = attention_mask(pos, kv, LENGTH, visibility.causal, window, own_tokens_only=True)
    assert mask is not None
    assert torch.equal(mask[:, 0] & is_token[:, 0], seen)
    blocks = make_block_mask(pos, visibility)
    options: dict[str, Any]
    for options in ({}, {"scale": 0.3}, {"softcap": 2.0}, {"scale": 0.3, "softcap": 2.0}):
        found = attend_blocks(q, kv, blocks, **options)
        wanted = attend(q, kv, mask, causal=visibility.causal, **options) * is_token
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(attend_blocks(q, kv, blocks), by_hand(q, kv, seen), rtol=0, atol=1e-12)


@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
def test_all_blocks_without_a_visible_pair_are_skipped(visibility: Visibility) -> None:
    pos = packed(DOCUMENTS)
    blocks = make_block_mask(pos, visibility)
    some, every = tiles(pairs_seen(pos, visibility))
    assert blocks.kv_num_blocks.sum() == (some & ~every).sum()
    assert blocks.full_kv_num_blocks is not None
    assert blocks.full_kv_num_blocks.sum() == every.sum()
    wanted = flex.create_block_mask(blocks.mask_mod, len(pos), 1, LENGTH, LENGTH, "cpu", SIZE)
    for name in ("kv", "full_kv", "q", "full_q"):  # q: for the backward pass
        for part in ("num_blocks", "indices"):
            found = getattr(blocks, f"{name}_{part}")
            assert torch.equal(found, getattr(wanted, f"{name}_{part}")), name
            assert found.is_contiguous()  # as the kernels read it


@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
def test_tokens_in_any_order_see_the_same(visibility: Visibility) -> None:
    """More blocks may be visited, none too few."""
    draw = random.Random(0)
    rows = [[t for n in row for t in (0, *draw.sample(range(1, n), n - 1))] for row in DOCUMENTS]
    pos = torch.tensor([row + [-1] * (LENGTH - len(row)) for row in rows])
    seen = pairs_seen(pos, visibility)
    q, kv = inputs(pos)
    blocks = make_block_mask(pos, visibility)
    torch.testing.assert_close(attend_blocks(q, kv, blocks), by_hand(q, kv, seen), rtol=0, atol=1e-12)
    some, _ = tiles(seen)
    visited = torch.zeros_like(some)
    for n, indices in (
        (blocks.kv_num_blocks, blocks.kv_indices),
        (blocks.full_kv_num_blocks, blocks.full_kv_indices),
    ):
        assert n is not None and indices is not None
        first = torch.arange(indices.size(-1)) < n[:, 0, :, None]
        visited |= torch.zeros_like(some).scatter(2, indices[:, 0].long(), first)
    assert not (some & ~visited).any()


@pytest.mark.parametrize("visibility", VISIBILITIES[3:5], ids=str)
def test_gradients_are_those_of_the_dense_mask(
    visibility: Visibility, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's reference of the backward pass, which it keeps for other devices; not by its kernel."""
    options = flex._apply_kernel_options
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(
        flex, "_apply_kernel_options", lambda *rest: options(*rest) | {"OUTPUT_LOGSUMEXP": True}
    )
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    pos = packed(DOCUMENTS)
    q, kv = inputs(pos)
    kv = kv.replace(k=kv.k.requires_grad_(), v=kv.v.requires_grad_())
    leaves, seen = (q.requires_grad_(), kv.k, kv.v), pairs_seen(pos, visibility)
    found = torch.autograd.grad(attend_blocks(q, kv, make_block_mask(pos, visibility)).square().sum(), leaves)
    is_token = (pos >= 0)[:, None, :, None]
    wanted = torch.autograd.grad(
        (attend(q, kv, seen[:, None], causal=visibility.causal) * is_token).square().sum(), leaves
    )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def noted(pos: Tensor, x: Tensor, *visibilities: Visibility) -> dict[Visibility, Any]:
    note_block_masks(x, pos, visibilities)
    masks: dict[Visibility, Any] = pos.block_masks  # type: ignore[attr-defined]
    return masks


def test_a_mask_is_made_once_where_blocks_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    pos, x = packed(DOCUMENTS), torch.zeros(4, LENGTH, 32, dtype=torch.bfloat16)
    wanted = [Visibility(True), Visibility(True, 3), Visibility(True)]
    assert not noted(pos, x, *wanted)  # on the CPU
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DEVICES", {"cpu"})
    assert set(noted(pos, x, *wanted)) == set(wanted)
    assert not noted(pos, x)
    assert not noted(pos, x.float(), *wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert len(noted(pos, x.float(), *wanted)) == 2
    assert not noted(packed([[LENGTH]]), x[:1], *wanted)  # one document
    assert not noted(packed([[3, 5]], 8), x[:1, :8], *wanted)  # one block
    one = packed(DOCUMENTS[:1])  # the same for all rows
    assert noted(one, x, wanted[0])[wanted[0]].kv_num_blocks.shape == (4, 1, 9)
    note_block_masks(x, None, wanted)
    assert find_block_mask(noted(pos, x, *wanted), wanted[0]) is None  # outside of a graph


def test_attention_that_needs_all_weights_has_no_blocks() -> None:
    shape = AttentionShape(
        d_model=64, n_heads=4, n_kv_heads=2, head_dim=16, v_head_dim=16, max_len=99, causal=True
    )

    def visibility(
        position: str = "rope", shape: AttentionShape = shape, **options: Any
    ) -> Visibility | None:
        scheme = POSITION.build(POSITION.check(Choice(position)), shape)
        attention: Attention = ATTENTION.build(ATTENTION.check(Choice("softmax", **options)), shape, scheme)
        return attention.train().visibility_in_blocks()

    assert visibility() == visibility("none") == visibility(softcap=3.0, scale=0.2) == Visibility(True)
    assert visibility(window=5, sink=2) == Visibility(True, 5, 2)
    for name in ("alibi", "t5", "shaw", "disentangled"):
        assert visibility(name) is None
    assert visibility(dropout=0.1) is None
    for width in (8, 264):
        assert visibility(shape=shape._replace(head_dim=width)) is None
        assert visibility(shape=shape._replace(v_head_dim=width)) is None
    attention: Attention = ATTENTION.build(
        Choice("softmax", dropout=0.1), shape, POSITION.build(Choice("none"), shape)
    )
    assert attention.eval().visibility_in_blocks() == Visibility(True)
    attention.weights_hooks.append(lambda weights: None)
    assert attention.visibility_in_blocks() is None
