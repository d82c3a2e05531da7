import pytest
import torch
import torch.nn.functional as F
from tests.kernels.build_extension_helpers import PRECISIONS, assert_close, needs_kernels
from torch import nn

from polyhead.kernels.linear import PANEL, NativeLinear, make_linear


def test_unpackable_bf16_is_computed_by_torch(monkeypatch):
    """Of a width that the kernel does not support, on a processor without bf16 in oneDNN."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    torch.manual_seed(0)
    weight, x = torch.randn(5, 3).bfloat16(), torch.randn(2, 4, 3).bfloat16()
    for bias in (None, torch.randn(5).bfloat16()):
        layer = make_linear(weight, bias)
        assert type(layer) is nn.Linear and torch.equal(layer(x), F.linear(x, weight, bias))
        assert not any(p.requires_grad for p in layer.parameters())


@needs_kernels
@PRECISIONS
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 8, 1), (5, 24, 63), (6, 40, 64), (7, 16, 65), (13, 700, 130), (40, 1030, 200), (400, 20, 70)],
)
def test_linear_against_fp64(dtype, tolerance, rows, inputs, outputs):
    sizes = (rows, inputs), (outputs, inputs), (outputs,)
    x, weight, bias = (torch.randn(size, dtype=dtype) for size in sizes)
    terms = x.double()[:, None] * weight.double()
    expected, size = terms.sum(-1), terms.abs().sum(-1)
    assert_close(NativeLinear(weight, None)(x), expected, tolerance, size)
    assert_close(NativeLinear(weight, bias)(x), expected + bias.double(), tolerance, size)
    batched = NativeLinear(weight, bias)(x.expand(2, 3, -1, -1))
    assert batched.shape == (2, 3, rows, outputs)
    assert_close(batched[1, 2], expected + bias.double(), tolerance, size)
    for first in range(0, outputs, PANEL):
        for end in {min(first + PANEL, outputs), outputs}:
            actual = NativeLinear(weight, bias).forward_slice(x, first, end)
            assert_close(actual, (expected + bias.double())[:, first:end], tolerance)


@needs_kernels
def test_bf16_rounds_to_nearest_and_nan_propagates():
    x = torch.randn(3, 2, dtype=torch.bfloat16)
    ties = torch.tensor([[1, 2**-8], [1, 3 * 2**-8], [-1, -(2**-8)]])
    pairs = torch.cat([torch.randn(200, 2) * 2.0 ** torch.randint(-8, 8, (200, 1)), ties])
    weight = pairs.bfloat16()
    exact = x.float()[:, None] * weight.float()
    expected = (exact[..., 0] + exact[..., 1]).bfloat16()
    actual = NativeLinear(weight, None)(x)
    assert (actual == expected).float().mean() > 0.99  # the sum has a rounding error of fp32
    ones = torch.ones(1, 2, dtype=torch.bfloat16)
    assert torch.equal(NativeLinear(weight, None)(ones)[0], weight.float().sum(1).bfloat16())
    weight = torch.eye(4)
    x = torch.tensor([[torch.nan, 1, torch.inf, 2]])
    assert NativeLinear(weight, None)(x).isnan().all()  # 0 * inf is nan
    half = NativeLinear(torch.eye(2).bfloat16(), None)(torch.tensor([[torch.nan, 1]]).bfloat16())
    assert half.isnan().all()
