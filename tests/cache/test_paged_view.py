"""A KV in pages is used as any other: rows are selected, concatenated and replaced."""

import pytest
import torch

from polyhead.cache.paged_view import PagedKV, PagedView, gather_pages
from polyhead.nn.kv import KV

FIELDS = ("k", "v", "pos", "log_count", "mask")


@pytest.fixture
def pair():
    """Two rows of two pages of two slots, and the same as plain tensors; rows share their first page."""
    torch.manual_seed(0)
    k, v = torch.randn(4, 1, 2, 3), torch.randn(4, 1, 2, 5)
    table = torch.tensor([[1, 2], [1, 3]])

    def gather(x):
        return gather_pages(table.flatten(), 2, x)

    pos = torch.tensor([[[0, 1, 2, 3]], [[0, 1, 2, -1]]])
    mask = (pos >= 0)[:, :, None]
    plain = KV(
        torch.stack([torch.cat([k[a], k[b]], 1) for a, b in table.tolist()]),
        torch.stack([torch.cat([v[a], v[b]], 1) for a, b in table.tolist()]),
        pos,
        mask=mask,
    )
    return PagedKV(PagedView(k, v, table, gather), pos, mask), plain


def assert_equal(actual, expected):
    for name in FIELDS:
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        assert one is None or torch.equal(one, other), name


def test_the_slots_are_those_of_the_pages(pair):
    assert_equal(*pair)


def test_rows_are_selected(pair):
    paged_kv, plain = pair
    for rows in (torch.tensor([1]), torch.tensor([1, 0, 1])):
        assert_equal(paged_kv.select(rows), plain.select(rows))


def test_fields_are_replaced(pair):
    paged_kv, plain = pair
    assert_equal(paged_kv.replace(mask=None), plain.replace(mask=None))
    assert_equal(paged_kv.replace(k=plain.v), plain.replace(k=plain.v))
    assert_equal(paged_kv.contiguous_for_decoding(), plain.contiguous_for_decoding())


def test_rows_are_concatenated(pair):
    paged_kv, plain = pair
    assert_equal(paged_kv.cat_rows(plain), plain.cat_rows(plain))
    assert_equal(plain.cat_rows(paged_kv), plain.cat_rows(plain))


def test_pages_are_gathered_once_and_only_when_read(pair):
    paged_kv, _ = pair
    assert not {"k", "v"} & vars(paged_kv).keys()
    assert paged_kv.k is paged_kv.k
    assert "v" not in vars(paged_kv)
