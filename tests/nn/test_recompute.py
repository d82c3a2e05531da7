import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from polyhead.nn.dropout import Dropout
from polyhead.nn.norm import BatchNorm
from polyhead.nn.recompute import recompute_in_backward

INPUT = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.dropout, self.linear = BatchNorm(6), Dropout(0.3), nn.Linear(6, 6)
        self.n_calls = 0

    def forward(self, x):
        self.n_calls += 1
        return self.linear(self.dropout(self.norm(x).sin())).tanh()


def call(layer, x, recompute):
    torch.manual_seed(3)
    return recompute_in_backward(layer, layer, x) if recompute else layer(x)


def copy_gradients(layer, x):
    return [tensor.grad.clone() for tensor in (x, *layer.parameters()) if tensor.grad is not None]


@pytest.fixture
def expected():
    layer, x = Layer(), INPUT.clone().requires_grad_()
    call(layer, x, False).sum().backward()
    return copy_gradients(layer, x)


def test_layer_runs_again_with_the_same_random_numbers(expected):
    layer, x = Layer(), INPUT.clone().requires_grad_()
    output = call(layer, x, True)
    assert layer.n_calls == 1
    torch.rand(3)  # random numbers are drawn before the backward pass
    rng_state = torch.get_rng_state()
    for n in (1, 2):  # a second backward pass recomputes again
        output.sum().backward(retain_graph=True)
        assert layer.n_calls == 1 + n and torch.equal(torch.get_rng_state(), rng_state)
        n_expected = [n * gradient for gradient in expected]
        torch.testing.assert_close(copy_gradients(layer, x), n_expected, rtol=0, atol=0)


def test_running_statistics_are_updated_once_or_restored():
    layer, plain = Layer(), Layer()
    call(layer, INPUT.clone().requires_grad_(), True).sum().backward()
    call(plain, INPUT.clone().requires_grad_(), False)
    assert all(map(torch.equal, layer.norm.buffers(), plain.norm.buffers()))
    torch.testing.assert_close(
        layer.norm.running_mean, 0.1 * INPUT.clone().requires_grad_().detach().mean((0, 1))
    )
    layer = Layer()
    all_reduce = layer.norm.all_reduce
    with pytest.raises(RuntimeError):
        recompute_in_backward(layer, layer, torch.zeros(2, 5, 7))
    assert layer.norm.all_reduce is all_reduce


def test_rank_sums_are_those_of_the_forward_pass():
    """A rank without labels has no backward pass and does not take part in sums again."""
    results = []
    for recompute in (False, True):
        layer, x = Layer(), INPUT.clone().requires_grad_()
        other_rank = iter([torch.full((7,), 3.0), torch.full((7,), 40.0)])

        def all_reduce(sums, other_rank=other_rank):
            return sums + next(other_rank)

        layer.norm.all_reduce = all_reduce
        call(layer, x, recompute).sum().backward()
        assert next(other_rank, None) is None and layer.norm.all_reduce is all_reduce
        results.append(copy_gradients(layer, x))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_function_modes_are_active_again():
    class DoubleLinear(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            return 2 * output if func is nn.functional.linear else output

    results = []
    for recompute in (False, True):
        layer, x = Layer(), INPUT.clone().requires_grad_()
        with DoubleLinear():
            output = call(layer, x, recompute)
        output.sum().backward()
        results.append(copy_gradients(layer, x))
    torch.testing.assert_close(*results, rtol=0, atol=0)
