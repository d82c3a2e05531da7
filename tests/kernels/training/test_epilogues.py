"""Products that end in an activation or a residual, each candidate against fp64."""

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.kernels.training import epilogues
from polyhead.kernels.training.elementwise import Activation, Drop

pytestmark = needs_kernels

SHAPES = [(1, 2, 1), (3, 70, 65), (200, 34, 130), (500, 128, 64)]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


def make_inputs(shape: tuple[int, int, int], dtype: torch.dtype, with_bias: bool):
    torch.manual_seed(1)
    rows, inner, columns = shape
    x, weight = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
    bias = torch.randn(columns) if with_bias else None
    bytes_ = torch.randint(0, 256, (rows, columns), dtype=torch.uint8)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    return x, weight, bias, Drop(bytes_, 64, 4 / 3), exact, (bytes_ >= 64) * 4 / 3


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("candidate", epilogues._ACTIVATION)
def test_activations(candidate: str, shape, dtype: torch.dtype, with_bias: bool) -> None:
    x, weight, bias, drop, exact, kept = make_inputs(shape, dtype, with_bias)
    activation = Activation.of(torch.nn.GELU(), is_gated=False)
    hidden, active = epilogues._ACTIVATION[candidate](x, weight, bias, activation, drop)
    wanted = torch.nn.functional.gelu(exact) * kept
    assert (hidden - exact).norm() <= TOLERANCE[dtype] * exact.norm()
    assert (active - wanted).norm() <= 2 * TOLERANCE[dtype] * wanted.norm() + 1e-9


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("candidate", epilogues._RESIDUAL)
def test_residuals(candidate: str, shape, dtype: torch.dtype, with_bias: bool) -> None:
    x, weight, bias, drop, exact, kept = make_inputs(shape, dtype, with_bias)
    residual = torch.randn(exact.shape)
    out = epilogues._RESIDUAL[candidate](x, weight, bias, residual, drop)
    wanted = residual.double() + exact * kept
    assert (out - wanted).norm() <= TOLERANCE[dtype] * wanted.norm()
