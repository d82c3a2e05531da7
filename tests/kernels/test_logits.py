"""The greatest numbers of rows, by the kernel and by torch."""

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.kernels import logits
from polyhead.kernels.logits import MAX_K, topk_log_softmax, topk_rows


@pytest.fixture(params=[pytest.param("kernel", marks=needs_kernels), "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(logits, "load_kernels", lambda: None)
    return request.param


@pytest.mark.parametrize("width", [1, 5, 63, 64, 65, 577, 1000, 8000])
@pytest.mark.parametrize("k", [1, 2, 10, MAX_K, MAX_K + 1])
def test_the_best_are_those_of_topk(width, k, backend):
    x = torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    values, ids = topk_rows(x, min(k, width))
    wanted = x.topk(min(k, width))
    assert torch.equal(values, wanted.values) and torch.equal(ids, wanted.indices)


@pytest.mark.parametrize("width", [40, 1000])
def test_who_is_banned_is_passed_over(width, backend):
    x = torch.randn(5, width, generator=torch.Generator().manual_seed(1))
    banned = [0, width - 1, *x.argmax(1).tolist()]
    wanted = x.index_fill(1, torch.tensor(banned), -torch.inf).topk(6)
    values, ids = topk_rows(x, 6, banned)
    assert torch.equal(values, wanted.values) and torch.equal(ids, wanted.indices)


def test_where_hardly_any_is_left_the_rest_are_columns_all_the_same(backend):
    x = torch.full((2, 100), -torch.inf)
    x[0, 60:62], x[1, 99] = torch.tensor([3.0, 4.0]), 0.5
    values, ids = topk_rows(x, 5, [61])
    assert values.tolist() == [[3.0] + [-torch.inf] * 4, [0.5] + [-torch.inf] * 4]
    assert ids[:, 0].tolist() == [60, 99] and int(ids.min()) >= 0 and int(ids.max()) < 100


@needs_kernels
def test_numbers_behind_one_that_is_none_are_seen():
    x = torch.zeros(1, 300)
    x[0, 64], x[0, 80] = torch.nan, 5.0  # of one panel, and in the same place of a vector, however wide it is
    assert topk_rows(x, 1)[1].tolist() == [[80]]


@needs_kernels
def test_of_equals_the_first_comes_first():
    x = torch.zeros(1, 300)
    x[0, [7, 90, 250]] = 1.0
    assert topk_rows(x, 5)[1].tolist() == [[7, 90, 250, 0, 1]]


def test_rows_that_do_not_lie_together_and_other_precisions(backend):
    x = torch.randn(4, 3, 90)
    for given in (x[:, -1], x[:, 0].double(), x[:, 1].bfloat16().float()[:, ::2]):
        assert torch.equal(topk_rows(given, 3)[0], given.topk(3).values)


@needs_kernels
@pytest.mark.parametrize("width", [5, 577, 8000])
def test_log_probabilities_of_the_best_are_those_of_double_precision(width):
    x = 4 * torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    values, ids = topk_log_softmax(x, 3, [2])
    expected = x.double().log_softmax(1)
    # the sum of 8,000 numbers in registers of 4 rounds most
    torch.testing.assert_close(values.double(), expected.gather(1, ids), atol=1e-5, rtol=1e-6)
    assert torch.equal(ids, x.index_fill(1, torch.tensor([2]), -torch.inf).topk(3).indices)
