import pytest
import torch
from tests.kernels.build_extension_helpers import needs_kernels
from tests.kernels.training.fusion_helpers import record_fusions, run_precisions
from torch import nn

from polyhead.config.model import AttentionShape
from polyhead.core.choice import Choice
from polyhead.core.registry import ATTENTION, NORM, POSITION
from polyhead.kernels.training.mode import FUSIONS, training_kernels
from polyhead.nn.residual import Residual

pytestmark = [needs_kernels, pytest.mark.usefixtures("form")]

WIDTH, HEADS, LENGTH, SOURCE_LENGTH = 64, 4, 37, 21
PADDING = torch.arange(LENGTH) >= torch.tensor([37, 20, 1])[:, None]
POS = torch.arange(LENGTH).expand(3, -1).masked_fill(PADDING, -1)


class Sublayer(nn.Module):
    def __init__(self, attention, position="none", norm="layernorm", norm_first=True, causal=True, **options):
        super().__init__()
        torch.manual_seed(1)
        sizes = {"n_heads": HEADS, "n_kv_heads": HEADS, "head_dim": 16, "v_head_dim": 16}
        sizes |= options.pop("shape", {})
        of_attention = AttentionShape(WIDTH, causal=causal, max_len=64, **sizes)
        self.scheme = POSITION.build(Choice(position), of_attention)
        choice = Choice.from_config({"name": "softmax"} | attention)
        self.layer = ATTENTION.build(choice, of_attention, self.scheme)
        self.residual = Residual(NORM.build(Choice(norm), WIDTH), norm_first, **options)
        self.pos = None
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.2)

    def forward(self, x, source=None):
        pos, memory = self.pos, None
        if source is not None:
            source_pos = torch.arange(SOURCE_LENGTH).expand(len(x), -1).clone()
            source_pos[1, 9:] = -1
            memory = self.layer.project_kv(source, source_pos)
        scheme = self.scheme.prepare(pos, x.size(1), x.device)
        return self.residual(x, self.layer, pos, None, memory, scheme)


def check_sublayer(sublayer, monkeypatch, pos=None, source=None):
    torch.manual_seed(2)
    x, weights = torch.randn(3, LENGTH, WIDTH), torch.randn(3, LENGTH, WIDTH)
    if pos is not None:
        weights.masked_fill_((pos < 0)[..., None], 0)
    sublayer.pos = pos
    inputs = [x] if source is None else [x, source]
    # torch has no fused kernel if values have another width, and its plain products round less
    ratio = 1.3 if sublayer.layer.head_dim == sublayer.layer.v_head_dim else 3.0
    for fused_fp32, fused_bf16, plain_bf16, exact in run_precisions(sublayer, inputs, weights, monkeypatch):
        size = exact.norm() + 3  # the gradient of a bias of keys is 0
        assert (fused_fp32 - exact).norm() <= 1e-5 * size
        assert (fused_bf16 - exact).norm() <= ratio * (plain_bf16 - exact).norm() + 2e-3 * size


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "none"])
@pytest.mark.parametrize("pos", [None, POS], ids=["full", "padded"])
def test_self_attention(norm, norm_first, pos, monkeypatch):
    check_sublayer(Sublayer({}, norm=norm, norm_first=norm_first, dropout=0.1, scale=0.5), monkeypatch, pos)


@pytest.mark.parametrize(
    "attention",
    [{"bias": False}, {"bias": "qkv"}, {"bias": "o"}, {"scale": 0.3}, {"window": 5, "sink": 1}],
    ids=str,
)
@pytest.mark.parametrize("causal", [True, False])
def test_options_of_attention(attention, causal, monkeypatch):
    check_sublayer(Sublayer(attention, causal=causal), monkeypatch)


@pytest.mark.parametrize("position", ["rope", "alibi", "sinusoidal"])
@pytest.mark.parametrize("shape", [{}, {"n_kv_heads": 2}, {"head_dim": 32, "v_head_dim": 48}], ids=str)
def test_positions_and_shapes(position, shape, monkeypatch):
    check_sublayer(Sublayer({}, position, shape=shape), monkeypatch, POS)


@pytest.mark.parametrize("norm_first", [True, False])
def test_attention_to_a_source(norm_first, monkeypatch):
    sublayer = Sublayer({}, norm_first=norm_first, causal=False, dropout=0.1, shape={"n_kv_heads": 2})
    check_sublayer(sublayer, monkeypatch, POS, torch.randn(3, SOURCE_LENGTH, WIDTH))


@pytest.mark.parametrize(
    ("attention", "position"),
    [({"qk_norm": True}, "none"), ({"tie": "kv"}, "none"), ({"qk_norm": True}, "rope")],
    ids=str,
)
def test_attention_is_fused_in_plain_sublayers(attention, position, monkeypatch):
    sublayer = Sublayer(attention, position)
    sublayer.pos = POS
    with record_fusions(monkeypatch, FUSIONS) as is_fused, training_kernels():
        sublayer(torch.randn(3, LENGTH, WIDTH))
    assert sorted(is_fused) == [False, True]  # the residual, attention


@pytest.mark.parametrize(
    ("attention", "position"),
    [({"softcap": 3.0}, "none"), ({"dropout": 0.1}, "none"), ({}, "t5"), ({}, "shaw")],
    ids=str,
)
def test_unsupported_attention_is_plain(attention, position, monkeypatch):
    sublayer, x = Sublayer(attention, position), torch.randn(3, LENGTH, WIDTH)
    sublayer.pos = POS
    torch.manual_seed(3)
    plain = sublayer(x)
    torch.manual_seed(3)
    with record_fusions(monkeypatch, FUSIONS) as is_fused, training_kernels():
        assert torch.allclose(sublayer(x), plain, atol=1e-5)
    assert not any(is_fused)


def test_one_frozen_projection_leaves_the_others_their_gradients():
    sublayer, x = Sublayer({}), torch.randn(3, LENGTH, WIDTH)
    sublayer.layer.q_proj.weight.requires_grad_(False)
    weights = [weight for weight in sublayer.layer.parameters() if weight.requires_grad]
    plain = torch.autograd.grad(sublayer(x).square().sum(), weights)
    with training_kernels():
        out = sublayer(x)
    fused = torch.autograd.grad(out.square().sum(), weights, allow_unused=True)
    for actual, expected in zip(fused, plain, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_frozen_weights_have_no_gradient():
    sublayer, x = Sublayer({}), torch.randn(3, LENGTH, WIDTH, requires_grad=True)
    sublayer.layer.requires_grad_(False)
    sublayer.layer.o_proj.bias.requires_grad_(True)
    plain = torch.autograd.grad(sublayer(x).sum(), (x, sublayer.layer.o_proj.bias))
    with training_kernels():
        out = sublayer(x)
    out.sum().backward()
    assert all(weight.grad is None for weight in (sublayer.layer.q_proj.weight, sublayer.layer.o_proj.weight))
    assert torch.allclose(x.grad, plain[0], atol=1e-5)
    assert torch.allclose(sublayer.layer.o_proj.bias.grad, plain[1], atol=1e-4)
