"""Which linear layer packed weights get."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.build_extension_helpers import PRECISIONS, close, needs_kernels
from torch import nn

from polyhead.kernels.linear import PANEL, NativeLinear, make_linear


def test_bf16_that_no_kernel_packs_is_computed_by_torch(monkeypatch):
    """A width that our kernel does not take, on a processor for which oneDNN has no bf16."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    torch.manual_seed(0)
    weight, x = torch.randn(5, 3).bfloat16(), torch.randn(2, 4, 3).bfloat16()
    for bias in (None, torch.randn(5).bfloat16()):
        layer = make_linear(weight, bias)
        assert type(layer) is nn.Linear
        assert torch.equal(layer(x), F.linear(x, weight, bias))
        assert not any(p.requires_grad for p in layer.parameters())


@needs_kernels
@PRECISIONS
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 8, 1), (5, 24, 63), (6, 40, 64), (7, 16, 65), (13, 700, 130), (40, 1030, 200), (400, 20, 70)],
)
def test_a_product_is_the_sum_of_products(dtype, near, rows, inputs, outputs):
    x, weight, bias = (
        torch.randn(rows, inputs, dtype=dtype),
        torch.randn(outputs, inputs, dtype=dtype),
        torch.randn(outputs, dtype=dtype),
    )
    terms = x.double()[:, None] * weight.double()
    wanted, size = terms.sum(-1), terms.abs().sum(-1)
    close(NativeLinear(weight, None)(x), wanted, near, size)
    close(NativeLinear(weight, bias)(x), wanted + bias.double(), near, size)
    several = NativeLinear(weight, bias)(x.expand(2, 3, -1, -1))
    assert several.shape == (2, 3, rows, outputs)
    close(several[1, 2], wanted + bias.double(), near, size)


@needs_kernels
@PRECISIONS
def test_a_part_of_a_product_is_that_of_its_rows(dtype, near):
    x, weight, bias = (
        torch.randn(3, 10, dtype=dtype),
        torch.randn(3 * PANEL + 5, 10, dtype=dtype),
        torch.randn(3 * PANEL + 5, dtype=dtype),
    )
    layer, wanted = NativeLinear(weight, bias), x.double() @ weight.double().T + bias.double()
    for first, end in ((0, PANEL), (PANEL, 2 * PANEL), (PANEL, 3 * PANEL + 5), (2 * PANEL, 3 * PANEL + 1)):
        close(layer.forward_slice(x, first, end), wanted[:, first:end], near)


@needs_kernels
def test_bf16_results_are_rounded_to_the_nearest_as_torch_does():
    x = torch.randn(3, 2, dtype=torch.bfloat16)
    pairs = torch.cat(
        [
            torch.randn(200, 2) * 2.0 ** torch.randint(-8, 8, (200, 1)),
            torch.tensor([[1, 2**-8], [1, 3 * 2**-8], [-1, -(2**-8)]]),
        ]
    )
    weight = pairs.bfloat16()
    exact = x.float()[:, None] * weight.float()
    wanted = (exact[..., 0] + exact[..., 1]).bfloat16()
    found = NativeLinear(weight, None)(x)
    assert (found == wanted).float().mean() > 0.99  # the sum itself may be off by a rounding of fp32
    ones = torch.ones(1, 2, dtype=torch.bfloat16)
    assert torch.equal(NativeLinear(weight, None)(ones)[0], weight.float().sum(1).bfloat16())


@needs_kernels
def test_numbers_that_are_not_finite_stay_so():
    weight = torch.eye(4)
    x = torch.tensor([[torch.nan, 1, torch.inf, 2]])
    assert NativeLinear(weight, None)(x).isnan().all()  # 0 times infinity too, as in any product
    half = NativeLinear(torch.eye(2).bfloat16(), None)(torch.tensor([[torch.nan, 1]]).bfloat16())
    assert half.isnan().all()
