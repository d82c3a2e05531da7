import pytest
import torch
from torch import nn

from polyhead.kernels.int_linear import Int4
from polyhead.nn.int4_linear import Int4Linear, count_weights, unpack_int4
from polyhead.nn.lora import LoraLinear, merge_lora, merge_lora_tensors
from polyhead.nn.state import named_state


def make_linear(bias=True, n_outputs=7, n_inputs=96):
    torch.manual_seed(1)
    linear = nn.Linear(n_inputs, n_outputs, bias=bias).requires_grad_(False)
    linear.weight[0] = 0
    linear.weight[1, 5] = 3.0  # the others of its row are small
    packed = Int4Linear(linear, Int4(linear.weight).to_bytes())
    quantized = Int4(linear.weight)
    linear.weight.copy_(quantized.values * quantized.scales[:, None])
    return linear, packed


def test_bytes_are_the_quantized_matrix():
    dense, packed = make_linear()
    assert torch.equal(unpack_int4(packed.weight), dense.weight)
    assert unpack_int4(dense.weight) is dense.weight
    assert packed.weight.nbytes == 7 * (96 * 17 // 32 + 4)
    assert count_weights(packed.weight) == count_weights(dense.weight) == 7 * 96


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_gradient_equal_the_dense_layer(bias, dtype):
    dense, packed = make_linear(bias)
    x, weights = torch.randn(3, 5, 96, requires_grad=True), torch.randn(3, 5, 7)
    results = []
    for layer in (dense, packed):
        x.grad = None
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            out = layer(x)
        (out * weights).sum().backward()
        results.append((out, x.grad))
    assert results[0][0].dtype == results[1][0].dtype
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert torch.autograd.gradcheck(lambda y: packed(y.float()).double(), x.double(), eps=0.1, atol=1e-3)


def test_unpacked_weights_are_not_kept():
    _, packed = make_linear(n_outputs=64)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        packed(torch.randn(2, 96, requires_grad=True))
    assert sum(kept) == packed.weight.nbytes


def test_adapters_on_packed_weights_are_merged():
    dense, packed = make_linear()
    adapters = []
    for linear in (dense, packed):
        rng = torch.Generator().manual_seed(2)
        adapters.append(LoraLinear(linear, 3, alpha=6.0, dropout=0.0, generator=rng))
        nn.init.constant_(adapters[-1].lora_b, 0.5)
    x = torch.randn(4, 96)
    assert torch.equal(*(adapter(x) for adapter in adapters))
    model = nn.ModuleDict({"a": adapters[1], "b": adapters[1], "c": make_linear()[1]})
    tensors = merge_lora_tensors(named_state(model), 2.0)
    expected = adapters[0](x)
    merge_lora(model)
    assert type(model["a"]) is nn.Linear is type(model["c"]) and model["a"] is model["b"]
    torch.testing.assert_close(model["a"](x), expected, rtol=0, atol=1e-5)
    assert torch.equal(model["c"].weight, dense.weight)
    assert {n: t.tolist() for n, t in named_state(model).items()} == {
        n: t.tolist() for n, t in tensors.items()
    }
