import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.training.fusion_helpers import run_precisions
from torch import nn

from polyhead.core.choice import Choice
from polyhead.core.registry import FEED_FORWARD, NORM
from polyhead.nn.residual import Residual

pytestmark = [needs_kernels, pytest.mark.usefixtures("form")]

WIDTH, INNER = 48, 80
LAYERS = [
    *({"name": name} for name in ("relu", "relu2", "leaky_relu", "gelu", "silu", "tanh", "sigmoid")),
    {"name": "gelu", "tanh": True, "bias": False},
    *({"name": name} for name in ("glu", "reglu", "geglu", "swiglu")),
    {"name": "swiglu", "bias": True},
    {"name": "geglu", "bias": "down"},
]
NORMS = [
    {"name": "layernorm"},
    {"name": "layernorm", "bias": False},
    {"name": "rmsnorm"},
    {"name": "rmsnorm", "zero_centered": True},
    {"name": "rmsnorm", "weight": False},
    {"name": "none"},
]


class Sublayer(nn.Module):
    def __init__(self, layer, norm, norm_first, **options):
        super().__init__()
        torch.manual_seed(1)
        self.layer = FEED_FORWARD.build(Choice.from_config(layer), WIDTH, INNER)
        self.residual = Residual(NORM.build(Choice.from_config(norm), WIDTH), norm_first, **options)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.3)

    def forward(self, x):
        return self.residual(x, self.layer)


def check_sublayer(sublayer, monkeypatch, shape=(3, 37, WIDTH)):
    x, weights = torch.randn(shape), torch.randn(shape)
    errors, plain_errors = [], []
    for fused_fp32, fused_bf16, plain_bf16, exact in run_precisions(sublayer, [x], weights, monkeypatch):
        assert (fused_fp32 - exact).norm() <= 1e-5 * exact.norm()
        errors.append(((fused_bf16 - exact).norm() / exact.norm()).item())
        plain_errors.append(((plain_bf16 - exact).norm() / exact.norm()).item())
        assert errors[-1] <= 2 * plain_errors[-1] + 1e-6
    assert sum(errors) <= 1.2 * sum(plain_errors)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_activation(layer, norm_first, monkeypatch):
    sublayer = Sublayer(layer | {"dropout": 0.2}, {"name": "layernorm"}, norm_first, dropout=0.1)
    check_sublayer(sublayer, monkeypatch)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_every_norm(norm, norm_first, monkeypatch):
    check_sublayer(Sublayer({"name": "gelu"}, norm, norm_first, scale=0.5), monkeypatch)


@pytest.mark.parametrize("rows", [1, 2, 65, 200])
def test_any_number_of_rows(rows, monkeypatch):
    sublayer = Sublayer({"name": "relu"}, {"name": "layernorm"}, True, dropout=0.1)
    check_sublayer(sublayer, monkeypatch, (rows, WIDTH))
