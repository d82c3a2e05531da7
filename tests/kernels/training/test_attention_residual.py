"""Fused residuals with attention against the plain modules in fp64."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from torch import Tensor, nn

from polyhead.config.model import AttentionShape
from polyhead.core.choice import Choice
from polyhead.core.registry import ATTENTION, NORM, POSITION
from polyhead.kernels.training import mode
from polyhead.kernels.training.mode import TrainingKernels
from polyhead.nn import kv
from polyhead.nn.residual import Residual

pytestmark = [
    needs_kernels,
    pytest.mark.usefixtures("form"),
]

WIDTH, HEADS, LENGTH, SOURCE_LENGTH = 64, 4, 37, 21
PADDING = torch.arange(LENGTH) >= torch.tensor([37, 20, 1])[:, None]
POS = torch.arange(LENGTH).expand(3, -1).masked_fill(PADDING, -1)


class Sublayer(nn.Module):
    """A residual and attention to its own tokens, or to those of a source (B, S, C)."""

    def __init__(
        self,
        attention: dict[str, Any],
        position: str = "none",
        norm: str = "layernorm",
        norm_first: bool = True,
        causal: bool = True,
        shape: dict[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        sizes = {"n_heads": HEADS, "n_kv_heads": HEADS, "head_dim": 16, "v_head_dim": 16} | (shape or {})
        of_attention = AttentionShape(WIDTH, causal=causal, max_len=64, **sizes)
        self.scheme = POSITION.build(Choice(position), of_attention)
        self.layer = ATTENTION.build(
            Choice.from_config({"name": "softmax"} | attention), of_attention, self.scheme
        )
        self.residual = Residual(NORM.build(Choice(norm), WIDTH), norm_first, **options)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.2)

    def forward(self, x: Tensor, pos: Tensor | None, source: Tensor | None) -> Tensor:
        memory = None
        if source is not None:
            seen = torch.arange(SOURCE_LENGTH).expand(len(x), -1).clone()
            seen[1, 9:] = -1
            memory = self.layer.project_kv(source, seen)
        scheme = self.scheme.prepare(pos, x.size(1), x.device)
        return self.residual(x, self.layer, pos, None, memory, scheme)


@contextmanager
def count_fused(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[list[bool]]:
    """Whether each call that has a form in this table was fused."""
    fused = []

    def count(fusion: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            out = fusion(*args, **kwargs)
            fused.append(out is not None)
            return out

        return call

    with monkeypatch.context() as patch:
        table = getattr(mode, name)
        patch.setattr(mode, name, {kind: count(fusion) for kind, fusion in table.items()})
        yield fused


def gradients(
    sublayer: nn.Module, x: Tensor, weights: Tensor, pos: Tensor | None, source: Tensor | None
) -> list[Tensor]:
    """The output, and the gradients of the inputs and of all parameters."""
    inputs = [y.clone().requires_grad_() for y in (x, source) if y is not None]
    out = sublayer(inputs[0], pos, inputs[1] if source is not None else None)
    return [out, *torch.autograd.grad((out * weights.to(out.dtype)).sum(), (*inputs, *sublayer.parameters()))]


def check(
    sublayer: Sublayer,
    monkeypatch: pytest.MonkeyPatch,
    pos: Tensor | None = None,
    source: Tensor | None = None,
) -> None:
    torch.manual_seed(2)
    x, weights = torch.randn(3, LENGTH, WIDTH), torch.randn(3, LENGTH, WIDTH)
    if pos is not None:
        weights.masked_fill_((pos < 0)[..., None], 0)
    state = torch.get_rng_state()

    def run(*contexts: Any) -> list[Tensor]:
        torch.set_rng_state(state)
        with contexts[0], contexts[1] if len(contexts) > 1 else nullcontext():
            return gradients(sublayer, x, weights, pos, source)

    bf16 = torch.autocast("cpu", torch.bfloat16)
    with count_fused(monkeypatch, "SUBLAYER_FUSIONS") as fused:
        fp32, half = run(TrainingKernels()), run(bf16, TrainingKernels())
    assert fused == [True, True]
    monkeypatch.setattr(kv, "_prefer_math_attention", lambda q, kv: False)
    plain = run(bf16)
    sublayer.double()
    torch.set_rng_state(state)
    exact = gradients(
        sublayer, x.double(), weights.double(), pos, None if source is None else source.double()
    )
    # torch has no fused kernel for values of another width, and rounds less in plain products
    ratio = 1.3 if sublayer.layer.head_dim == sublayer.layer.v_head_dim else 3.0
    for ours, ours_half, theirs, true in zip(fp32, half, plain, exact, strict=True):
        assert ours.dtype == ours_half.dtype == torch.float32
        size = true.norm() + 3  # the gradient of a bias of keys is 0
        assert (ours - true).norm() <= 1e-5 * size
        assert (ours_half - true).norm() <= ratio * (theirs - true).norm() + 2e-3 * size


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "none"])
@pytest.mark.parametrize("pos", [None, POS], ids=["full", "padded"])
def test_self_attention(
    norm: str, norm_first: bool, pos: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    check(Sublayer({}, norm=norm, norm_first=norm_first, dropout=0.1, scale=0.5), monkeypatch, pos)


@pytest.mark.parametrize(
    "attention",
    [{"bias": False}, {"bias": "qkv"}, {"bias": "o"}, {"scale": 0.3}, {"window": 5, "sink": 1}],
    ids=str,
)
@pytest.mark.parametrize("causal", [True, False])
def test_options_of_attention(
    attention: dict[str, Any], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    check(Sublayer(attention, causal=causal), monkeypatch)


@pytest.mark.parametrize("position", ["rope", "alibi", "sinusoidal"])
@pytest.mark.parametrize("shape", [{}, {"n_kv_heads": 2}, {"head_dim": 32, "v_head_dim": 48}], ids=str)
def test_positions_and_shapes(position: str, shape: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    check(Sublayer({}, position, shape=shape), monkeypatch, POS)


@pytest.mark.parametrize("norm_first", [True, False])
def test_attention_to_a_source(norm_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    sublayer = Sublayer({}, norm_first=norm_first, causal=False, dropout=0.1, shape={"n_kv_heads": 2})
    check(sublayer, monkeypatch, POS, torch.randn(3, SOURCE_LENGTH, WIDTH))


@pytest.mark.parametrize(
    ("attention", "position"),
    [({"qk_norm": True}, "none"), ({"tie": "kv"}, "none"), ({"qk_norm": True}, "rope")],
    ids=str,
)
def test_attention_alone_where_the_sublayer_has_no_form(
    attention: dict[str, Any], position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    sublayer = Sublayer(attention, position)
    with count_fused(monkeypatch, "FUSIONS") as fused, TrainingKernels():
        sublayer(torch.randn(3, LENGTH, WIDTH), POS, None)
    assert sorted(fused) == [False, True]  # the residual, attention


@pytest.mark.parametrize(
    ("attention", "position"),
    [({"softcap": 3.0}, "none"), ({"dropout": 0.1}, "none"), ({}, "t5"), ({}, "shaw")],
    ids=str,
)
def test_what_the_kernel_does_not_compute_is_plain(
    attention: dict[str, Any], position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    sublayer, x = Sublayer(attention, position), torch.randn(3, LENGTH, WIDTH)
    torch.manual_seed(3)
    plain = sublayer(x, POS, None)
    torch.manual_seed(3)
    with count_fused(monkeypatch, "FUSIONS") as fused, TrainingKernels():
        assert torch.allclose(sublayer(x, POS, None), plain, atol=1e-5)
    assert not any(fused)


def test_frozen_weights_have_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    sublayer, x = Sublayer({}), torch.randn(3, LENGTH, WIDTH, requires_grad=True)
    sublayer.layer.requires_grad_(False)
    sublayer.layer.o_proj.bias.requires_grad_(True)
    plain = torch.autograd.grad(sublayer(x, None, None).sum(), (x, sublayer.layer.o_proj.bias))
    with TrainingKernels():
        out = sublayer(x, None, None)
    out.sum().backward()
    assert all(weight.grad is None for weight in (sublayer.layer.q_proj.weight, sublayer.layer.o_proj.weight))
    assert torch.allclose(x.grad, plain[0], atol=1e-5)
    assert torch.allclose(sublayer.layer.o_proj.bias.grad, plain[1], atol=1e-4)
