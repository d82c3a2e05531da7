import itertools

import pytest
import torch
from tests.kernels.build_extension_helpers import CONFIGS, PRECISIONS, assert_close, needs_kernels

from polyhead.cache.paged_layer import PagedView
from polyhead.kernels.attention import paged_attention
from polyhead.kernels.pack_model import pack_model
from polyhead.models import build


def view_rows(k, v):
    """One page for each row."""
    return PagedView(k, v, torch.arange(len(k))[:, None], lambda x: x)


def attention(q, k, v, mask, scale):
    """The formula in fp64, one query at a time: (N, H, T, D) over (B, K, S, D) -> (N, T, H * Dv)."""
    N, H, T, _ = q.shape
    n, group = N // len(k), H // k.size(1)
    out = torch.zeros(N, T, H, v.size(3), dtype=torch.float64)
    for i, h, t in itertools.product(range(N), range(H), range(T)):
        row, head = i // n, h // group
        is_visible = torch.ones(k.size(2), dtype=torch.bool)
        if mask is not None:
            is_visible = mask.expand(len(k), k.size(1), T, -1)[row, head, t]
        if is_visible.any():
            scores = (k[row, head, is_visible].double() @ q[i, h, t].double()) * scale
            out[i, t, h] = scores.softmax(0) @ v[row, head, is_visible].double()
    return out.flatten(2)


@needs_kernels
@PRECISIONS
@pytest.mark.parametrize("mask_shape", [None, (1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 4), (3, 2, 4)])
@pytest.mark.parametrize(("share", "queries"), [(1, 1), (1, 2), (5, 1), (1, 4), (2, 4)])
def test_paged_attention_with_masks(dtype, tolerance, mask_shape, share, queries):
    B, K, group, block, n, D, Dv = 3, 2, 3, 4, 5, 32, 16
    torch.manual_seed(1)
    k, v = (torch.randn(B, K, n * block, width, dtype=dtype) for width in (D, Dv))
    q = 3 * torch.randn(B * share, queries, K * group, D, dtype=dtype).transpose(1, 2)
    mask = None
    if mask_shape is not None:
        mask = torch.rand(mask_shape[0], mask_shape[1], min(mask_shape[2], queries), n * block) < 0.5
        mask[0, 0, 0] = False
    table = torch.randperm(B * n).view(B, n)
    pages_of_kv = []
    for x in (k, v):
        pages = torch.empty(B * n, K, block, x.size(3), dtype=dtype)
        pages[table.flatten()] = x.unflatten(2, (n, block)).transpose(1, 2).flatten(0, 1)
        pages_of_kv.append(pages)
    expected, view = attention(q, k, v, mask, 0.2), PagedView(*pages_of_kv, table, lambda x: x)
    assert_close(paged_attention(q, view, mask, 0.2), expected, tolerance)
    view = view_rows(k.transpose(1, 2).contiguous().transpose(1, 2), v)
    assert_close(paged_attention(q.contiguous(), view, mask, 0.2), expected, tolerance)


@needs_kernels
@PRECISIONS
@pytest.mark.parametrize(("slots", "queries"), [(1, 8), (63, 9), (64, 12), (150, 20)])
def test_many_queries_over_several_panels(dtype, tolerance, slots, queries):
    q = 2 * torch.randn(2, queries, 2, 48, dtype=dtype).transpose(1, 2)
    k, v = torch.randn(2, 2, slots, 48, dtype=dtype), torch.randn(2, 2, slots, 80, dtype=dtype)
    mask = torch.rand(2, 1, queries, slots) < 0.7
    expected = attention(q, k, v, mask, 48**-0.5)
    assert_close(paged_attention(q, view_rows(k, v), mask), expected, tolerance)


@needs_kernels
def test_large_scores_do_not_overflow():
    k = torch.tensor([[-1e4], [-90.0], [-86.0], [-20.0], [0.0], [80.0], [1e4]]).expand(7, 16)[None, None] / 16
    v, q = torch.randn(1, 1, 7, 16), torch.ones(1, 1, 1, 16)
    for last in range(1, 8):
        keys, values = k[:, :, :last], v[:, :, :last]
        expected = attention(q, keys, values, None, 1.0)
        assert_close(paged_attention(q, view_rows(keys, values), None, 1.0), expected, 1e-5)


@needs_kernels
def test_long_texts_use_torch_attention(monkeypatch):
    fast = pack_model(build(CONFIGS["grouped"], seed=1).eval())
    source = torch.randint(5, 97, (2, 40))
    expected = fast.encode(source)
    monkeypatch.setattr("polyhead.kernels.attention.MAX_SCORES", 40)
    monkeypatch.setattr(
        "polyhead.kernels.attention.paged_attention", lambda *_: pytest.fail("too many scores")
    )
    for one, other in zip(expected, fast.encode(source), strict=True):
        torch.testing.assert_close(one.k, other.k, rtol=0, atol=1e-5)
