import itertools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention as flex

from polyhead.config.model import AttentionShape
from polyhead.core.choice import Choice
from polyhead.core.registry import ATTENTION, POSITION
from polyhead.nn import block_mask
from polyhead.nn.block_mask import attend_blocks, find_block_mask, make_block_mask, make_block_masks
from polyhead.nn.kv import KV, Window, attend, attention_mask
from polyhead.nn.positions import Positions, Visibility

VISIBILITIES = [  # also windows that end where a block does
    *(Visibility(True, *options) for options in ((), (9,), (15,), (5, 2))),
    *(Visibility(False, *options) for options in ((), (7,), (9,), (15,), (5, 20))),
]
SIZE = 8  # of a block
DOCUMENTS = [[1, 9, 3, 32, 2, 13], [35, 32], [8, 8, 8, 5], [65]]  # the last rows end with padding
LENGTH = 67


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(block_mask, "BLOCK_SIZE", SIZE)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def pack(rows, length=LENGTH):
    pos = torch.full((len(rows), length), -1)
    for row, lengths in zip(pos, rows, strict=True):
        positions = [t for n in lengths for t in range(n)][:length]
        row[: len(positions)] = torch.tensor(positions)
    return pos


def visible_pairs(pos, visibility):
    causal, window, sink = visibility
    mask = np.zeros((*pos.shape, pos.size(1)), dtype=bool)
    for row, positions in zip(mask, pos.tolist(), strict=True):
        document = np.cumsum(np.array(positions) == 0)
        for q, q_pos in enumerate(positions):
            for k, k_pos in enumerate(positions):
                if q_pos < 0 or k_pos < 0 or document[q] != document[k] or (causal and k_pos > q_pos):
                    continue
                is_near = window is None or (q_pos - k_pos < window and k_pos - q_pos < window)
                row[q, k] = is_near or k_pos < sink
    return torch.from_numpy(mask)


def reduce_blocks(mask):
    """Whether a block has some visible pair, and whether all its pairs are visible: (B, n, n)."""
    pad = -mask.size(1) % SIZE
    blocks = F.pad(mask, (0, pad, 0, pad)).unflatten(2, (-1, SIZE)).unflatten(1, (-1, SIZE))
    return blocks.any(4).any(2), blocks.all(4).all(2)


def make_inputs(pos):
    rng = torch.Generator().manual_seed(0)
    sizes = [(len(pos), heads, pos.size(1), width) for heads, width in ((4, 16), (2, 16), (2, 24))]
    q, k, v = (torch.randn(size, generator=rng, dtype=torch.float64) for size in sizes)
    return q, KV(k, v, pos[:, None])


def reference(q, kv, mask):
    """softmax(q k^T / sqrt(D)) v; 0 where everything is masked."""
    k, v = (x.repeat_interleave(2, 1) for x in (kv.k, kv.v))
    weights = (q @ k.mT / 4).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
    return weights.nan_to_num() @ v


@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
def test_blocks_equal_the_dense_mask(visibility):
    pos = pack(DOCUMENTS)
    q, kv = make_inputs(pos)
    pairs, is_token = visible_pairs(pos, visibility), (pos >= 0)[:, None, :, None]
    window = None if visibility.window is None else Window(*visibility[1:])
    mask = attention_mask(pos, kv, LENGTH, visibility.causal, window, own_tokens_only=True)
    assert mask is not None and torch.equal(mask[:, 0] & is_token[:, 0], pairs)
    blocks = make_block_mask(pos, visibility)
    for options in ({}, {"scale": 0.3}, {"softcap": 2.0}, {"scale": 0.3, "softcap": 2.0}):
        expected = attend(q, kv, mask, causal=visibility.causal, **options) * is_token
        torch.testing.assert_close(attend_blocks(q, kv, blocks, **options), expected, rtol=0, atol=1e-12)
    rng = random.Random(0)  # for tokens in any order more blocks may be visited, but not fewer
    rows = [[t for n in row for t in (0, *rng.sample(range(1, n), n - 1))] for row in DOCUMENTS]
    shuffled = torch.tensor([row + [-1] * (LENGTH - len(row)) for row in rows])
    for order in (pos, shuffled):
        q, kv = make_inputs(order)
        output = attend_blocks(q, kv, make_block_mask(order, visibility))
        expected = visible_pairs(order, visibility)
        torch.testing.assert_close(output, reference(q, kv, expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
def test_blocks_without_a_visible_pair_are_skipped(visibility):
    pos = pack(DOCUMENTS)
    blocks = make_block_mask(pos, visibility)
    is_partial, is_full = reduce_blocks(visible_pairs(pos, visibility))
    assert blocks.kv_num_blocks.sum() == (is_partial & ~is_full).sum()
    assert blocks.full_kv_num_blocks.sum() == is_full.sum()
    expected = flex.create_block_mask(blocks.mask_mod, len(pos), 1, LENGTH, LENGTH, "cpu", SIZE)
    for name, part in itertools.product(("kv", "full_kv", "q", "full_q"), ("num_blocks", "indices")):
        actual = getattr(blocks, f"{name}_{part}")  # q: for the backward pass
        assert torch.equal(actual, getattr(expected, f"{name}_{part}")), name
        assert actual.is_contiguous()  # the kernels require it


@pytest.mark.parametrize("visibility", VISIBILITIES[3:5], ids=str)
def test_gradients_equal_those_of_the_dense_mask(visibility, monkeypatch):
    """By torch's reference implementation of the backward pass; its kernel needs a GPU."""
    apply, options = flex._apply_kernel_options, {"OUTPUT_LOGSUMEXP": True}
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "_apply_kernel_options", lambda *rest: apply(*rest) | options)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    pos = pack(DOCUMENTS)
    q, kv = make_inputs(pos)
    leaves = [x.requires_grad_() for x in (q, kv.k, kv.v)]
    output = attend_blocks(q, kv, make_block_mask(pos, visibility))
    expected_output = reference(q, kv, visible_pairs(pos, visibility))
    actual, expected = (torch.autograd.grad(y.square().sum(), leaves) for y in (output, expected_output))
    torch.testing.assert_close(actual, tuple(x.nan_to_num() for x in expected), rtol=0, atol=1e-6)


def make_masks(pos, x, *visibilities):
    return make_block_masks(x, Positions.of(pos), visibilities)


def test_block_masks_are_made_where_they_are_useful(monkeypatch):
    pos, x = pack(DOCUMENTS), torch.zeros(4, LENGTH, 32, dtype=torch.bfloat16)
    visibilities = [Visibility(True), Visibility(True, 3), Visibility(True)]
    assert not make_masks(pos, x, *visibilities)  # on the CPU
    monkeypatch.setattr(block_mask, "BLOCK_MASK_DEVICES", {"cpu"})
    assert set(make_masks(pos, x, *visibilities)) == set(visibilities)
    assert not make_masks(pos, x) and not make_masks(pos, x.float(), *visibilities)
    with torch.autocast("cpu", torch.bfloat16):
        assert len(make_masks(pos, x.float(), *visibilities)) == 2
    assert not make_masks(pack([[LENGTH]]), x[:1], *visibilities)  # one document
    assert not make_masks(pack([[3, 5]], 8), x[:1, :8], *visibilities)  # one block
    row = pack(DOCUMENTS[:1])  # of all rows
    assert make_masks(row, x, visibilities[0])[visibilities[0]].kv_num_blocks.shape == (4, 1, 9)
    assert find_block_mask(make_masks(pos, x, *visibilities), visibilities[0]) is None  # outside of a graph
    sizes = {"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "v_head_dim": 16, "max_len": 99}
    shape = AttentionShape(**sizes, causal=True)

    def build_attention(position="rope", shape=shape, **options):
        scheme = POSITION.build(POSITION.check(Choice(position)), shape)
        attention = ATTENTION.build(ATTENTION.check(Choice("softmax", **options)), shape, scheme)
        return attention.train()

    for options in ({}, {"position": "none"}, {"softcap": 3.0, "scale": 0.2}):
        assert build_attention(**options).visibility_in_blocks() == Visibility(True)
    assert build_attention(window=5, sink=2).visibility_in_blocks() == Visibility(True, 5, 2)
    for name in ("alibi", "t5", "shaw", "disentangled"):
        assert build_attention(name).visibility_in_blocks() is None
    for width in (8, 264):
        for key in ("head_dim", "v_head_dim"):
            assert build_attention(shape=shape._replace(**{key: width})).visibility_in_blocks() is None
    attention = build_attention(dropout=0.1)
    assert attention.visibility_in_blocks() is None
    assert attention.eval().visibility_in_blocks() == Visibility(True)
    attention.weights_hooks.append(lambda weights: None)
    assert attention.visibility_in_blocks() is None
