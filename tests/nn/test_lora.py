"""Low-rank adapters: their equation, their gradients, and that merged they are plain weights that give the
same.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyhead.nn.lora import LoraLinear, merge_lora, merge_lora_tensors
from polyhead.nn.state import named_state


def made(bias: bool = True, dropout: float = 0.0, rank: int = 3) -> tuple[nn.Linear, LoraLinear]:
    torch.manual_seed(1)
    linear = nn.Linear(8, 6, bias=bias)
    bits = torch.Generator().manual_seed(2)
    return linear, LoraLinear(linear, rank, alpha=6.0, dropout=dropout, generator=bits)


def taught(adapter: LoraLinear) -> LoraLinear:
    nn.init.normal_(adapter.lora_b)
    return adapter


def naive(adapter: LoraLinear, x: Tensor) -> Tensor:
    """The equation, written out in float64."""
    W, A, B = (w.detach().double() for w in (adapter.weight, adapter.lora_a, adapter.lora_b))
    y = x.double() @ W.T + 6.0 / len(A) * (x.double() @ A.T) @ B.T
    return y if adapter.bias is None else y + adapter.bias.detach().double()


def test_nothing_is_changed_until_it_has_learned() -> None:
    linear, adapter = made()
    x = torch.randn(2, 5, 8)
    assert torch.equal(adapter(x), linear(x))
    assert adapter.weight is linear.weight and adapter.bias is linear.bias
    assert 0 < adapter.lora_a.abs().max() <= 8**-0.5


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_its_equation(bias: bool) -> None:
    adapter = taught(made(bias)[1])
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(adapter(x).double(), naive(adapter, x), rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_the_formula() -> None:
    """dL/dA = s Bᵀ G x, dL/dB = s G (A x)ᵀ, dL/dx = (W + s B A)ᵀ G, where G is dL/dy."""
    adapter, s = taught(made()[1]), 6.0 / 3
    adapter.weight.requires_grad_(False)
    x, g = torch.randn(7, 8, requires_grad=True), torch.randn(7, 6)
    (adapter(x) * g).sum().backward()
    W, A, B, X, G = (t.detach().double() for t in (adapter.weight, adapter.lora_a, adapter.lora_b, x, g))
    wanted = {"a": s * (B.T @ G.T) @ X, "b": s * G.T @ (X @ A.T), "x": G @ (W + s * B @ A)}
    found = {"a": adapter.lora_a.grad, "b": adapter.lora_b.grad, "x": x.grad}
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor.float(), rtol=1e-5, atol=1e-5)
    assert adapter.weight.grad is None


def test_dropout_is_on_what_the_adapter_reads_alone() -> None:
    _, adapter = made(dropout=0.5)
    x = torch.ones(1, 8)
    taught(adapter).train()
    frozen = x @ adapter.weight.T + adapter.bias
    several = torch.cat([adapter(x) for _ in range(4000)]).detach()
    assert not torch.equal(several[0], several[1])
    torch.testing.assert_close(several.mean(0).double(), naive(adapter, x)[0], rtol=0, atol=0.25)
    assert (several.mean(0) - frozen).abs().max() > 0.5
    assert torch.equal(adapter.eval()(x), adapter(x))


def test_merged_it_is_a_linear_that_gives_the_same() -> None:
    model = nn.Sequential(taught(made()[1]), nn.ReLU(), nn.Linear(6, 2))
    tied = nn.ModuleDict({"q": model[0], "k": model[0], "rest": model})
    x, names = torch.randn(9, 8), named_state(tied).keys()
    before, by_name = model(x), merge_lora_tensors(named_state(tied), 6.0 / 3)
    merge_lora(tied)
    assert type(tied["q"]) is nn.Linear and tied["q"] is tied["k"] and tied["q"] is model[0]
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-6)
    assert {name.rpartition(".")[2] for name in names - named_state(tied).keys()} == {
        "lora_a",
        "lora_b",
    }
    assert by_name.keys() == named_state(tied).keys()
    for name, tensor in named_state(tied).items():
        torch.testing.assert_close(by_name[name], tensor, rtol=0, atol=0)


def test_a_model_without_adapters_is_left_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    before = {name: tensor.clone() for name, tensor in named_state(model).items()}
    merge_lora(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in named_state(model).items())
    assert merge_lora_tensors(before, 2.0) == before
