import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.kernels import linear as logits
from polyhead.kernels.linear import MAX_K, max_and_logsumexp, topk_log_softmax, topk_rows


@pytest.fixture(params=[pytest.param("kernel", marks=needs_kernels), "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(logits, "load_kernels", lambda: None)
    return request.param


@pytest.mark.parametrize("width", [1, 5, 63, 64, 65, 577, 1000, 8000])
@pytest.mark.parametrize("k", [1, 2, 10, MAX_K, MAX_K + 1])
def test_topk_rows_against_torch(width, k, backend):
    x = torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    values, ids = topk_rows(x, min(k, width))
    assert_equal(values, ids, x.topk(min(k, width)))
    if width >= 63:
        banned_ids = [0, width - 1, *x.argmax(1).tolist()]
        expected = x.index_fill(1, torch.tensor(banned_ids), -torch.inf).topk(min(k, 50))
        assert_equal(*topk_rows(x, min(k, 50), banned_ids), expected)


def assert_equal(values, ids, expected):
    assert torch.equal(values, expected.values) and torch.equal(ids, expected.indices)


def test_strided_rows_and_other_dtypes(backend):
    x = torch.randn(4, 3, 90)
    for rows in (x[:, -1], x[:, 0].double(), x[:, 1].bfloat16().float()[:, ::2]):
        assert torch.equal(topk_rows(rows, 3)[0], rows.topk(3).values)


@needs_kernels
def test_ties_and_nan_of_the_kernel():
    x = torch.zeros(2, 300)
    x[0, [7, 90, 250]] = 1.0
    x[1, 64], x[1, 80] = torch.nan, 5.0  # of one panel, in the same lane of vectors of any width
    ids = topk_rows(x, 5)[1].tolist()
    assert ids[0] == [7, 90, 250, 0, 1] and topk_rows(x[1:], 1)[1].tolist() == [[80]]


def test_topk_of_almost_all_infinite_rows(backend):
    x = torch.full((2, 100), -torch.inf)
    x[0, 60:62], x[1, 99] = torch.tensor([3.0, 4.0]), 0.5
    values, ids = topk_rows(x, 5, [61])
    assert values.tolist() == [[3.0] + [-torch.inf] * 4, [0.5] + [-torch.inf] * 4]
    assert ids[:, 0].tolist() == [60, 99] and int(ids.min()) >= 0 and int(ids.max()) < 100


@needs_kernels
@pytest.mark.parametrize("width", [5, 577, 8000])
def test_topk_log_softmax_against_fp64(width):
    x = 4 * torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    values, ids = topk_log_softmax(x, 3, [2])
    expected = x.double().log_softmax(1)
    # a sum of 8,000 numbers in registers of 4 has the largest error
    torch.testing.assert_close(values.double(), expected.gather(1, ids), atol=1e-5, rtol=1e-6)
    assert torch.equal(ids, x.index_fill(1, torch.tensor([2]), -torch.inf).topk(3).indices)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 1000])
def test_max_and_logsumexp_against_fp64(width, backend):
    x = 30 * torch.randn(5, width) + torch.tensor([[0], [200], [-200], [1e4], [0]])
    x[4, width // 2 :] = -torch.inf  # where width is 1, the whole row
    maximum, log_sum = max_and_logsumexp(x)
    expected = x.double().logsumexp(-1, keepdim=True) - x.double().amax(-1, keepdim=True)
    assert torch.equal(maximum, x.amax(-1, keepdim=True))
    torch.testing.assert_close(log_sum[:4].double(), expected[:4], rtol=1e-6, atol=1e-6)
    assert width == 1 or torch.isclose(log_sum[4].double(), expected[4], rtol=1e-6, atol=1e-6)
    x[1, -1] = torch.nan
    assert max_and_logsumexp(x)[1][1].isnan()
