import pytest
import torch
from torch import nn

from polyhead.nn.lora import LoraLinear, merge_lora, merge_lora_tensors
from polyhead.nn.state import named_state

SCALE = 6.0 / 3  # alpha / r


def make_adapter(bias=True, dropout=0.0, is_trained=True):
    torch.manual_seed(1)
    rng = torch.Generator().manual_seed(2)
    adapter = LoraLinear(nn.Linear(8, 6, bias=bias), 3, alpha=6.0, dropout=dropout, generator=rng)
    if is_trained:
        nn.init.normal_(adapter.lora_b)
    return adapter


def reference(adapter, x, adapter_x):
    """W x + s B A x + b in float64."""
    W, A, B = (w.detach().double() for w in (adapter.weight, adapter.lora_a, adapter.lora_b))
    y = x.double() @ W.T + SCALE * (adapter_x.double() @ A.T) @ B.T
    return y if adapter.bias is None else y + adapter.bias.detach().double()


def test_adapter_equals_its_equation_until_merged():
    adapter, x = make_adapter(is_trained=False), torch.randn(2, 5, 8)
    assert torch.equal(adapter(x), nn.functional.linear(x, adapter.weight, adapter.bias))
    assert 0 < adapter.lora_a.abs().max() <= 8**-0.5
    model = nn.Sequential(nn.Linear(3, 3))
    expected = {name: tensor.clone() for name, tensor in named_state(model).items()}
    merge_lora(model)
    assert all(torch.equal(expected[name], tensor) for name, tensor in named_state(model).items())
    assert merge_lora_tensors(expected, 2.0) == expected
    model = nn.Sequential(make_adapter(), nn.ReLU(), nn.Linear(6, 2))
    modules = nn.ModuleDict({"q": model[0], "k": model[0], "rest": model})
    x, names = torch.randn(9, 8), named_state(modules).keys()
    expected, tensors = model(x), merge_lora_tensors(named_state(modules), SCALE)
    merge_lora(modules)
    assert type(modules["q"]) is nn.Linear and modules["q"] is modules["k"] and modules["q"] is model[0]
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-6)
    state = named_state(modules)
    assert {name.rpartition(".")[2] for name in names - state.keys()} == {"lora_a", "lora_b"}
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("bias", [True, False])
def test_adapter_equals_its_equation(bias):
    adapter, x = make_adapter(bias), torch.randn(2, 5, 8)
    torch.testing.assert_close(adapter(x).double(), reference(adapter, x, x), rtol=1e-5, atol=1e-6)


def test_gradients_equal_the_formula():
    """dL/dA = s Bᵀ G x, dL/dB = s G (A x)ᵀ, dL/dx = (W + s B A)ᵀ G, where G is dL/dy."""
    adapter, s = make_adapter(), SCALE
    adapter.weight.requires_grad_(False)
    x, g = torch.randn(7, 8, requires_grad=True), torch.randn(7, 6)
    (adapter(x) * g).sum().backward()
    W, A, B, X, G = (t.detach().double() for t in (adapter.weight, adapter.lora_a, adapter.lora_b, x, g))
    actual = adapter.lora_a.grad, adapter.lora_b.grad, x.grad
    expected = s * (B.T @ G.T) @ X, s * G.T @ (X @ A.T), G @ (W + s * B @ A)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-5)
    assert adapter.weight.grad is None


def test_dropout_applies_to_the_adapter_input_only():
    adapter, x = make_adapter(dropout=0.5).train(), torch.randn(9, 8)
    adapter.dropout.register_forward_hook(lambda module, args, output: masks.append(output))
    masks = []
    output = adapter(x)
    assert 0.2 < float((masks[0] == 0).float().mean()) < 0.8
    torch.testing.assert_close(output.double(), reference(adapter, x, masks[0]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(adapter.eval()(x).double(), reference(adapter, x, x), rtol=1e-5, atol=1e-6)
