import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels

from polyhead.kernels.training import elementwise as epilogues
from polyhead.kernels.training.elementwise import Activation, Drop

pytestmark = needs_kernels

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


def make_inputs(shape, dtype, with_bias):
    torch.manual_seed(1)
    rows, inner, columns = shape
    x, weight = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
    bias = torch.randn(columns) if with_bias else None
    bytes_ = torch.randint(0, 256, (rows, columns), dtype=torch.uint8)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    return x, weight, bias, Drop(bytes_, 64, 4 / 3), exact, (bytes_ >= 64) * 4 / 3


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 2, 1), (3, 70, 65), (200, 34, 130), (500, 128, 64)])
def test_activations_and_residuals(shape, dtype, with_bias):
    x, weight, bias, drop, exact, keep_scale = make_inputs(shape, dtype, with_bias)
    activation, residual = Activation.of(torch.nn.GELU(), is_gated=False), torch.randn(exact.shape)
    for candidate in epilogues._ACTIVATION.values():
        hidden, active = candidate(x, weight, bias, activation, drop)
        expected = torch.nn.functional.gelu(exact) * keep_scale
        assert (hidden - exact).norm() <= TOLERANCE[dtype] * exact.norm()
        assert (active - expected).norm() <= 2 * TOLERANCE[dtype] * expected.norm() + 1e-9
    for candidate in epilogues._RESIDUAL.values():
        out, expected = candidate(x, weight, bias, residual, drop), residual.double() + exact * keep_scale
        assert (out - expected).norm() <= TOLERANCE[dtype] * expected.norm()


@pytest.mark.parametrize(
    ("dtype", "inner", "has_epilogue"),
    [(torch.float32, 3, True), (torch.bfloat16, 4, True), (torch.bfloat16, 3, False)],
)
def test_epilogues_need_rows_of_full_words(dtype, inner, has_epilogue, monkeypatch):
    """Packed rows are steps of 4 bytes; other rows are products of a library and a pass."""
    x, weight, bias, drop, exact, keep_scale = make_inputs((5, inner, 7), dtype, with_bias=True)
    kinds = []

    def choose(kind, candidates, *_):
        kinds.append(kind.split("-")[0])
        return candidates["epilogue"]

    monkeypatch.setattr(epilogues, "fastest_product", choose)
    activation, residual = Activation.of(torch.nn.GELU(), is_gated=False), torch.randn(exact.shape)
    _, active = epilogues.linear_activation(x, weight, bias, activation, drop)
    out = epilogues.linear_residual(x, weight, bias, residual, drop)
    assert kinds == ([f"activation{activation.code}", "residual"] if has_epilogue else [])
    gelu = torch.nn.functional.gelu(exact) * keep_scale
    for actual, expected in ((active, gelu), (out, residual.double() + exact * keep_scale)):
        assert (actual - expected).norm() <= 2 * TOLERANCE[dtype] * expected.norm() + 1e-9
