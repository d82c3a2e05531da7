"""Tests of nn/recompute.py: the repeated call of a block has no side effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from polyhead.nn.dropout import Dropout
from polyhead.nn.norm import BatchNorm
from polyhead.nn.recompute import recompute_in_backward


class Layer(nn.Module):
    """A norm over the batch, dropout and a linear layer; counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.dropout, self.linear = BatchNorm(6), Dropout(0.3), nn.Linear(6, 6)
        self.n_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        out: Tensor = self.linear(self.dropout(self.norm(x).sin())).tanh()
        return out


def make_input() -> Tensor:
    return torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(2)).requires_grad_()


def call(layer: Layer, x: Tensor, recompute: bool) -> Tensor:
    torch.manual_seed(3)
    return recompute_in_backward(layer, layer, x) if recompute else layer(x)


def gradients_of(layer: Layer, x: Tensor) -> list[Tensor]:
    return [tensor.grad.clone() for tensor in (x, *layer.parameters()) if tensor.grad is not None]


def assert_equal(some: list[Tensor], others: list[Tensor]) -> None:
    assert len(some) == len(others) == 5
    for one, other in zip(some, others, strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def expected() -> list[Tensor]:
    """The gradients without recomputation."""
    layer, x = Layer(), make_input()
    call(layer, x, False).sum().backward()
    return gradients_of(layer, x)


def test_the_layer_runs_again_with_the_same_random_numbers(expected: list[Tensor]) -> None:
    layer, x = Layer(), make_input()
    out = call(layer, x, True)
    assert layer.n_calls == 1
    state = torch.get_rng_state()
    torch.rand(3)  # what runs before the backward pass may draw numbers
    after = torch.get_rng_state()
    out.sum().backward()
    assert layer.n_calls == 2 and not torch.equal(state, after)
    assert torch.equal(torch.get_rng_state(), after)
    assert_equal(gradients_of(layer, x), expected)


def test_running_statistics_are_updated_once() -> None:
    layer, plain = Layer(), Layer()
    call(layer, make_input(), True).sum().backward()
    call(plain, make_input(), False)
    assert torch.equal(layer.norm.running_mean, plain.norm.running_mean)
    assert torch.equal(layer.norm.running_var, plain.norm.running_var)
    tokens = make_input().detach().flatten(0, 1)
    torch.testing.assert_close(layer.norm.running_mean, 0.1 * tokens.mean(0))


def test_sums_over_ranks_are_those_of_the_forward_pass() -> None:
    """A rank without labels has no backward pass: then the others must not ask it for sums again."""
    results = []
    for recompute in (False, True):
        layer, x = Layer(), make_input()
        other_rank = iter([torch.full((7,), 3.0), torch.full((7,), 40.0)])

        def all_reduce(sums: Tensor, other_rank: Any = other_rank) -> Tensor:
            return sums + next(other_rank)

        layer.norm.all_reduce = all_reduce
        call(layer, x, recompute).sum().backward()
        assert next(other_rank, None) is None and layer.norm.all_reduce is all_reduce
        results.append(gradients_of(layer, x))
    assert_equal(*results)


def test_function_modes_of_the_forward_pass_are_active_again() -> None:
    class Doubled(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            return 2 * out if func is nn.functional.linear else out

    results = []
    for recompute in (False, True):
        layer, x = Layer(), make_input()
        with Doubled():
            out = call(layer, x, recompute)
        out.sum().backward()
        results.append(gradients_of(layer, x))
    assert_equal(*results)


def test_a_second_backward_pass_recomputes_again(expected: list[Tensor]) -> None:
    layer, x = Layer(), make_input()
    out = call(layer, x, True)
    for _ in range(2):
        out.sum().backward(retain_graph=True)
    assert layer.n_calls == 3
    assert_equal(gradients_of(layer, x), [2 * gradient for gradient in expected])


def test_an_error_in_the_layer_leaves_its_norms_as_they_are() -> None:
    layer = Layer()
    all_reduce = layer.norm.all_reduce
    with pytest.raises(RuntimeError):
        recompute_in_backward(layer, layer, torch.zeros(2, 5, 7))
    assert layer.norm.all_reduce is all_reduce
