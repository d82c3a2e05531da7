import pytest
import torch

from polyhead.cache.paged_layer import PagedKV, PagedView, gather_pages
from polyhead.nn.kv import KV

FIELDS = ("k", "v", "pos", "log_count", "mask")


@pytest.fixture
def pair():
    torch.manual_seed(0)
    k, v = torch.randn(4, 1, 2, 3), torch.randn(4, 1, 2, 5)
    table = torch.tensor([[1, 2], [1, 3]])

    def gather(x):
        return gather_pages(table.flatten(), 2, x)

    pos = torch.tensor([[[0, 1, 2, 3]], [[0, 1, 2, -1]]])
    mask = (pos >= 0)[:, :, None]
    plain = (torch.stack([torch.cat([x[a], x[b]], 1) for a, b in table.tolist()]) for x in (k, v))
    return PagedKV(PagedView(k, v, table, gather), pos, mask), KV(*plain, pos, mask=mask)


def assert_equal(actual, expected):
    for name in FIELDS:
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        assert one is None or torch.equal(one, other), name


def test_paged_kv_equals_plain_kv(pair):
    paged, plain = pair
    assert not {"k", "v"} & vars(paged).keys(), "pages are gathered when they are read, once"
    assert paged.k is paged.k and "v" not in vars(paged)
    assert_equal(paged, plain)
    for rows in (torch.tensor([1]), torch.tensor([1, 0, 1])):
        assert_equal(paged.select(rows), plain.select(rows))
    assert_equal(paged.replace(mask=None), plain.replace(mask=None))
    assert_equal(paged.replace(k=plain.v), plain.replace(k=plain.v))
    assert_equal(paged.contiguous_for_decoding(), plain.contiguous_for_decoding())
    assert_equal(paged.cat_rows(plain), plain.cat_rows(plain))
    assert_equal(plain.cat_rows(paged), plain.cat_rows(plain))
