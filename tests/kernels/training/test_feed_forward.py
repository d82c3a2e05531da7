"""Fused feed-forward residuals against the plain modules in fp64."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from torch import Tensor, nn

from polyhead.core.choice import Choice
from polyhead.core.registry import FEED_FORWARD, NORM
from polyhead.kernels.training import mode
from polyhead.kernels.training.mode import SUBLAYER_FUSIONS, TrainingKernels
from polyhead.nn.residual import Residual

pytestmark = [
    needs_kernels,
    pytest.mark.usefixtures("form"),
]

WIDTH, INNER = 48, 80
LAYERS: list[dict[str, Any]] = [
    *({"name": name} for name in ("relu", "relu2", "leaky_relu", "gelu", "silu", "tanh")),
    {"name": "gelu", "tanh": True, "bias": False},
    *({"name": name} for name in ("glu", "reglu", "geglu", "swiglu")),
    {"name": "swiglu", "bias": True},
    {"name": "geglu", "bias": "down"},
]
NORMS: list[dict[str, Any]] = [
    {"name": "layernorm"},
    {"name": "layernorm", "bias": False},
    {"name": "rmsnorm"},
    {"name": "rmsnorm", "zero_centered": True},
    {"name": "rmsnorm", "weight": False},
    {"name": "none"},
]


class Sublayer(nn.Module):
    """A residual and its layer."""

    def __init__(self, layer: dict[str, Any], norm: dict[str, Any], norm_first: bool, **options: Any) -> None:
        super().__init__()
        self.layer = FEED_FORWARD.build(Choice.from_config(layer), WIDTH, INNER)
        self.residual = Residual(NORM.build(Choice.from_config(norm), WIDTH), norm_first, **options)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x, self.layer)


@contextmanager
def count_fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each sub-layer was fused."""
    fused = []

    def count(fusion: Any) -> Any:
        def call(*args: Any) -> Any:
            out = fusion(*args)
            fused.append(out is not None)
            return out

        return call

    with monkeypatch.context() as patch:
        patch.setattr(
            mode, "SUBLAYER_FUSIONS", {kind: count(fusion) for kind, fusion in SUBLAYER_FUSIONS.items()}
        )
        yield fused


def gradients(sublayer: nn.Module, x: Tensor, weights: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    out = sublayer(x)
    return [out, *torch.autograd.grad((out * weights.to(out.dtype)).sum(), (x, *sublayer.parameters()))]


def check(
    sublayer: Sublayer, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...] = (3, 37, WIDTH)
) -> None:
    x, weights = torch.randn(shape), torch.randn(shape)
    state = torch.get_rng_state()

    def run(*contexts: AbstractContextManager[object]) -> list[Tensor]:
        torch.set_rng_state(state)
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            return gradients(sublayer, x, weights)

    bf16 = torch.autocast("cpu", torch.bfloat16)
    with count_fused(monkeypatch) as fused:
        fp32, half = run(TrainingKernels()), run(bf16, TrainingKernels())
    assert fused == [True, True]
    plain = run(bf16)
    sublayer.double()
    torch.set_rng_state(state)
    exact = gradients(sublayer, x.double(), weights.double())
    half_errors, plain_errors = [], []
    for ours, ours_half, theirs, true in zip(fp32, half, plain, exact, strict=True):
        assert ours.dtype == ours_half.dtype == torch.float32
        assert (ours - true).norm() <= 1e-5 * true.norm()
        half_errors.append(((ours_half - true).norm() / true.norm()).item())
        plain_errors.append(((theirs - true).norm() / true.norm()).item())
        assert half_errors[-1] <= 2 * plain_errors[-1] + 1e-6
    assert sum(half_errors) <= 1.2 * sum(plain_errors)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_activation(layer: dict[str, Any], norm_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    layer = layer | {"dropout": 0.2}
    check(Sublayer(layer, {"name": "layernorm"}, norm_first, dropout=0.1), monkeypatch)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_every_norm(norm: dict[str, Any], norm_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    check(Sublayer({"name": "gelu"}, norm, norm_first, scale=0.5), monkeypatch)


@pytest.mark.parametrize("rows", [1, 2, 65, 200])
def test_any_number_of_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    sublayer = Sublayer({"name": "relu"}, {"name": "layernorm"}, True, dropout=0.1)
    check(sublayer, monkeypatch, (rows, WIDTH))
