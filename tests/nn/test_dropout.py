import pytest
import torch

from polyhead.core.errors import UserError
from polyhead.nn.dropout import Dropout


@pytest.mark.parametrize("p", [0.0005, 0.0019, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9, 0.97, 0.9995])
def test_rate_scale_and_mean(p):
    """Common rates are drawn as bytes, of which there are 256; small and large ones are exact."""
    torch.manual_seed(0)
    is_exact = p < 0.05 or p > 0.95
    n, rate = (2_000_000, p) if is_exact else (400_000, round(p * 256) / 256)
    y = Dropout(p)(torch.ones(n))
    assert abs(rate - p) <= 1 / 512
    assert abs(float((y == 0).double().mean()) - rate) < 5 * (rate * (1 - rate) / n) ** 0.5
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - rate))]


def test_draws_shapes_and_evaluation():
    torch.manual_seed(0)
    is_kept = Dropout(0.5)(torch.ones(40_000, 8)) > 0
    assert (is_kept.float().mean(0) - 0.5).abs().max() < 0.02
    assert (torch.corrcoef(is_kept.float().T) - torch.eye(8)).abs().max() < 0.03
    dropout, draws = Dropout(0.5), []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append([dropout(torch.ones(64)) for _ in range(2)])
    assert not torch.equal(*draws[0]) and all(map(torch.equal, *draws))
    for x in map(torch.ones, ((), (0,), (3, 0), (1,), (9,), (4, 4))):
        assert Dropout(0.5)(x).shape == x.shape
        assert Dropout(0.7).eval()(x) is x and Dropout(0.0)(x) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.25, 0.02])
def test_gradient_has_the_mask_of_the_output(p, dtype):
    torch.manual_seed(0)
    x = torch.randn(50, 7, 3, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x.transpose(0, 1))  # not contiguous
    y.sum().backward()
    is_dropped = (y == 0).transpose(0, 1)
    assert 0 < is_dropped.sum() < 0.5 * is_dropped.numel() and (x.grad[is_dropped] == 0).all()
    assert (x.grad[~is_dropped] == torch.tensor(1 / (1 - p), dtype=dtype)).all()


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_invalid_probability_is_refused(p):
    with pytest.raises(UserError, match="dropout must be a probability"):
        Dropout(p)
