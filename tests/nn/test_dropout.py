"""Dropout: how many, how large, which, and when."""

import pytest
import torch

from polyhead.core.errors import UserError
from polyhead.nn.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_the_rate_the_scale_and_the_mean_are_right(p):
    torch.manual_seed(0)
    n = 400_000
    y = Dropout(p)(torch.ones(n))
    rate = round(p * 256) / 256  # bytes know no finer rates
    assert abs(rate - p) <= 1 / 512
    assert abs(float((y == 0).float().mean()) - rate) < 5 * (rate * (1 - rate) / n) ** 0.5
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - rate))]
    assert float(y.mean()) == pytest.approx(1, abs=5 * (rate / (1 - rate) / n) ** 0.5)


def test_every_byte_of_a_draw_is_random_and_no_place_is_preferred():
    torch.manual_seed(0)
    kept = Dropout(0.5)(torch.ones(40_000, 8)) > 0
    assert (kept.float().mean(0) - 0.5).abs().max() < 0.02
    pairs = torch.corrcoef(kept.float().T)
    assert (pairs - torch.eye(8)).abs().max() < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_gradient_passes_where_the_value_did(dtype):
    torch.manual_seed(0)
    x = torch.randn(5, 7, 3, dtype=dtype, requires_grad=True)
    y = Dropout(0.25)(x.transpose(0, 1))  # not contiguous
    y.sum().backward()
    dropped = (y == 0).transpose(0, 1)
    assert 0 < dropped.sum() < dropped.numel()
    assert (x.grad[dropped] == 0).all()
    assert (x.grad[~dropped] == torch.tensor(1 / 0.75, dtype=dtype)).all()


def test_evaluation_is_identity_and_costs_nothing():
    x = torch.randn(4, 4)
    assert Dropout(0.7).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_calls_differ_and_a_seed_repeats_them():
    drop, x = Dropout(0.5), torch.ones(64)

    def twice():
        torch.manual_seed(3)
        return drop(x), drop(x)

    first, second = twice()
    assert not torch.equal(first, second)
    for a, b in zip((first, second), twice(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("p", [0.0005, 0.0019, 0.01, 0.03, 0.97, 0.9995])
def test_rates_that_bytes_do_not_know_are_exact(p):
    torch.manual_seed(0)
    n = 4_000_000
    y = Dropout(p)(torch.ones(n))
    assert abs(float((y == 0).double().mean()) - p) < 4 * (p * (1 - p) / n) ** 0.5
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]


def test_the_gradient_of_an_exact_rate_passes_where_the_value_did():
    torch.manual_seed(0)
    x = torch.ones(4000, requires_grad=True)
    y = Dropout(0.02)(x)
    y.sum().backward()
    assert 0 < int((y == 0).sum()) < 200
    assert torch.equal(x.grad, y)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (9,)])
def test_any_shape_keeps_its_shape(shape):
    assert Dropout(0.5)(torch.ones(shape)).shape == shape


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(UserError, match="dropout must be a probability"):
        Dropout(p)
