import math

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.build_extension_helpers import needs_kernels
from torch import nn

from polyhead.kernels.training import loss as loss_module
from polyhead.kernels.training.loss import fuse_cross_entropy
from polyhead.kernels.training.products import round_rows
from polyhead.nn.embedding import Head
from polyhead.nn.loss import IGNORE_INDEX, cross_entropy

pytestmark = needs_kernels
CASES = [  # rows, vocabulary, width, bias, softcap, smoothing, scale
    (1, 1, 1, False, None, 0.0, 1.0),
    (7, 5, 3, True, None, 0.1, 1.0),
    (40, 65, 16, False, None, 0.0, 0.25),
    (33, 1003, 24, True, 5.0, 0.1, 1.0),
    (64, 96, 48, False, 2.0, 0.3, 2.0),
]


def make_case(rows, vocab, width, has_bias, softcap, scale):
    torch.manual_seed(rows)
    bias = nn.Parameter(torch.randn(vocab)) if has_bias else None
    head = Head(nn.Parameter(torch.randn(vocab, width)), bias, scale, softcap)
    labels = torch.randint(0, vocab, (rows, 2))
    labels[:: max(2, rows // 3), 0] = IGNORE_INDEX
    return torch.randn(rows, 2, width, requires_grad=True), head, labels


def expected_loss(x, head, labels, smoothing):
    """Total, nll and all gradients of 0.3 total by torch's loss in fp64."""
    x, weight = (value.detach().double().requires_grad_() for value in (x, head.weight))
    bias = None if head.bias is None else head.bias.detach().double().requires_grad_()
    logits = F.linear(x * head.scale, weight, bias).flatten(0, 1)
    logits = logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)
    options = {"ignore_index": IGNORE_INDEX, "reduction": "sum"}
    total = F.cross_entropy(logits, labels.flatten(), label_smoothing=smoothing, **options)
    inputs = [x, weight] if bias is None else [x, weight, bias]
    nll = F.cross_entropy(logits, labels.flatten(), **options)
    return total, nll, *torch.autograd.grad(0.3 * total, inputs)


def fused_loss(x, head, labels, smoothing):
    loss = fuse_cross_entropy({}, x, head, labels, smoothing)
    assert loss is not None and loss.count == int((labels != IGNORE_INDEX).sum())
    inputs = [x, head.weight] if head.bias is None else [x, head.weight, head.bias]
    return loss.total, loss.nll, *torch.autograd.grad(0.3 * loss.total, inputs)


def distance(a, b):
    return float((a.detach().double() - b.detach()).norm() / (b.detach().norm() + 1e-12))


@pytest.mark.parametrize("chunk_bytes", [1, 480, 2**26])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_in_fp32(case, chunk_bytes, monkeypatch):
    monkeypatch.setattr(loss_module, "LOGITS_BYTES", chunk_bytes)
    *sizes, smoothing, scale = case
    x, head, labels = make_case(*sizes, scale)
    results = fused_loss(x, head, labels, smoothing), expected_loss(x, head, labels, smoothing)
    for actual, expected in zip(*results, strict=True):
        assert distance(actual, expected) < 2e-6 or float(expected.detach().norm()) < 1e-6


@pytest.mark.parametrize("case", CASES[1:])
def test_bf16_error_is_that_of_plain_loss(case):
    *sizes, smoothing, scale = case
    x, head, labels = make_case(*sizes, scale)
    expected = expected_loss(x, head, labels, smoothing)
    with torch.autocast("cpu", torch.bfloat16):
        actual, plain = fused_loss(x, head, labels, smoothing), cross_entropy(x, head, labels, smoothing)
    inputs = [x, head.weight] if head.bias is None else [x, head.weight, head.bias]
    plain_results = (plain.total, plain.nll, *torch.autograd.grad(0.3 * plain.total, inputs))
    for a, b, c in zip(actual, plain_results, expected, strict=True):
        assert distance(a, c) < 1.2 * distance(b, c) + 1e-5


def test_nonfinite_rows_give_a_nonfinite_loss():
    x, head, labels = make_case(7, 40, 3, False, None, 1.0)
    for value in (math.nan, math.inf):
        with torch.no_grad():
            x[1, 1, 0] = value
        total, nll, d_x, _ = fused_loss(x, head, labels, 0.1)
        assert not total.isfinite() and not nll.isfinite() and d_x[1, 1].isnan().all()
        assert d_x[2].isfinite().all()


def test_absent_labels_frozen_weights_and_other_tensors():
    x, head, labels = make_case(7, 40, 3, True, None, 1.0)
    total, nll, *gradients = fused_loss(x, head, torch.full_like(labels, IGNORE_INDEX), 0.1)
    assert total.item() == nll.item() == 0 and not any(float(d.norm()) for d in gradients)
    frozen = Head(head.weight.detach(), None)
    loss = fuse_cross_entropy({}, x, frozen, labels)
    assert loss is not None
    expected = expected_loss(x, frozen, labels, 0.0)
    assert distance(torch.autograd.grad(0.3 * loss.total, x)[0], expected[2]) < 2e-6
    with torch.no_grad():
        quiet = fuse_cross_entropy({}, x, frozen, labels)
    assert quiet is not None and float(quiet.total) == pytest.approx(expected[0].item(), rel=1e-6)
    x, head, labels = make_case(7, 40, 3, False, None, 1.0)
    assert fuse_cross_entropy({}, x.double(), head, labels) is None
    assert fuse_cross_entropy({}, x.to("meta"), head, labels) is None
    assert fuse_cross_entropy({}, x, head, labels.int()) is None


@pytest.mark.parametrize("label", [9, -1, -101, 2**40])
def test_label_outside_of_the_head_is_refused(label):
    x, head, labels = make_case(6, 9, 4, True, None, 1.0)
    labels[3, 1] = label
    with pytest.raises(IndexError, match=f"^label {label} is outside of the 9 rows of the head$"):
        fuse_cross_entropy({}, x, head, labels)


def test_numbers_of_labels_share_few_numbers_of_rows(monkeypatch):
    seen = set()

    def record_rows(kind, a, b, bias=None):
        seen.add(len(a))
        return a @ b

    monkeypatch.setattr(loss_module, "multiply", record_rows)
    x, head, labels = make_case(256, 40, 8, False, None, 1.0)
    for n in range(260, 500):
        some = labels.flatten().clamp_min(0).index_fill(0, torch.arange(n, 512), IGNORE_INDEX).view_as(labels)
        fuse_cross_entropy({}, x, head, some)
    assert seen == set(range(272, 513, 16))


def test_rounded_rows_cost_little():
    for n in range(1, 5000):
        assert n <= round_rows(n) <= n + n / 16
    assert len({round_rows(n) for n in range(2049, 4097)}) == 16
