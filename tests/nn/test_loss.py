"""The chunked cross-entropy against the plain one of torch."""

import pytest
import torch
import torch.nn.functional as F

from polyhead.nn.lm_head import Head
from polyhead.nn.loss import IGNORE_INDEX, classification_loss, cross_entropy


def drawn(rows=(3, 7), width=6, vocab=11, ignored=4, dtype=torch.float32):
    torch.manual_seed(0)
    features = (2 * torch.randn(*rows, width)).to(dtype).requires_grad_()
    weight = torch.randn(vocab, width).to(dtype).requires_grad_()
    labels = torch.randint(0, vocab, rows)
    labels.view(-1)[torch.randperm(labels.numel())[:ignored]] = IGNORE_INDEX
    return features, weight, labels


@pytest.mark.parametrize("chunk", [1, 4, 17, 512])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_sums_and_gradients_equal_those_of_torch(smoothing, chunk):
    features, weight, labels = drawn()
    logits = (features @ weight.T).flatten(0, 1)
    options = {"ignore_index": IGNORE_INDEX, "reduction": "sum"}
    plain = F.cross_entropy(logits, labels.flatten(), label_smoothing=smoothing, **options)
    loss = cross_entropy(features, Head(weight), labels, smoothing, chunk)
    torch.testing.assert_close(loss.total, plain)
    torch.testing.assert_close(loss.nll, F.cross_entropy(logits, labels.flatten(), **options))
    assert loss.count == 17
    mine, theirs = (torch.autograd.grad(3 * total, (features, weight)) for total in (loss.total, plain))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert (mine[0][labels == IGNORE_INDEX] == 0).all()


def test_a_frozen_head_gets_no_gradient_and_what_it_reads_gets_the_same():
    features, weight, labels = drawn()
    (wanted,) = torch.autograd.grad(cross_entropy(features, Head(weight), labels).total, features)
    cross_entropy(features, Head(weight.requires_grad_(False)), labels).total.backward()
    assert torch.equal(features.grad, wanted) and weight.grad is None


def test_smoothing_gives_the_label_what_is_left():
    """1 - e + e/V for the label, e/V for the others (Szegedy et al., 2016, sec. 7),
    written out in float64.
    """
    features, weight, labels = drawn(rows=(1, 2), ignored=0)
    log_p = (features.double() @ weight.double().T).log_softmax(-1)[0]
    wanted = 0.0
    for t in range(2):
        for v in range(11):
            share = 0.2 / 11 + (0.8 if v == labels[0, t] else 0.0)
            wanted -= share * float(log_p[t, v].detach())
    total = cross_entropy(features, Head(weight), labels, 0.2).total
    assert float(total.detach()) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.acceptance("A5")
@pytest.mark.parametrize("rows", [(2, 3), (0, 3)])
def test_a_batch_that_asks_nothing_gives_zero_and_no_gradient(rows):
    features, weight, labels = drawn(rows=rows, ignored=0)
    loss = cross_entropy(features, Head(weight), torch.full_like(labels, IGNORE_INDEX), 0.1)
    loss.total.backward()
    assert (float(loss.total.detach()), float(loss.nll.detach()), loss.count) == (0.0, 0.0, 0)
    assert (features.grad == 0).all()
    assert (weight.grad == 0).all()


@pytest.mark.acceptance("A6")
def test_sums_over_any_partition_of_a_batch_add_up():
    features, weight, labels = drawn(rows=(6, 7), ignored=20)
    whole = cross_entropy(features, Head(weight), labels, 0.1)
    wanted = torch.autograd.grad(whole.total, (features, weight))
    for cuts in ([1, 5], [3, 3], [1, 1, 4], [2, 2, 2]):
        parts = [
            cross_entropy(f, Head(weight), y, 0.1)
            for f, y in zip(features.split(cuts), labels.split(cuts), strict=True)
        ]
        assert sum(p.count for p in parts) == whole.count
        total = sum(p.total for p in parts)
        torch.testing.assert_close(total, whole.total)
        torch.testing.assert_close(
            torch.autograd.grad(total, (features, weight)), wanted, rtol=1e-5, atol=1e-6
        )


def test_under_autocast_the_products_are_bf16_and_the_sums_are_not():
    features, weight, labels = drawn(width=32, vocab=101)
    plain = cross_entropy(features, Head(weight), labels, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(features, Head(weight), labels, 0.1)
    assert loss.total.dtype == torch.float32
    assert not torch.equal(loss.total, plain.total)
    torch.testing.assert_close(loss.total, plain.total, rtol=1e-2, atol=0)
    mine, theirs = (torch.autograd.grad(x.total, (features, weight)) for x in (loss, plain))
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.03 * b.norm()


def test_whole_models_in_bf16_have_gradients_in_bf16():
    features, weight, labels = drawn(dtype=torch.bfloat16)
    loss = cross_entropy(features, Head(weight), labels)
    loss.total.backward()
    assert loss.total.dtype == torch.float32
    assert (features.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)


def test_huge_logits_stay_finite():
    features, weight, labels = drawn(ignored=0)
    loss = cross_entropy(features * 1e4, Head(weight), labels, 0.1)
    loss.total.backward()
    assert loss.total.isfinite()
    assert features.grad.isfinite().all()


def test_without_gradients_none_are_computed_and_the_sums_are_the_same():
    features, weight, labels = drawn()
    with torch.no_grad():
        loss = cross_entropy(features, Head(weight), labels, 0.1)
    assert not loss.total.requires_grad
    assert torch.equal(loss.total, cross_entropy(features, Head(weight), labels, 0.1).total)
    frozen = cross_entropy(features, Head(weight.detach()), labels, 0.1).total
    (g,) = torch.autograd.grad(frozen, features)
    assert g.abs().sum() > 0


def test_the_loss_of_a_label_is_not_differentiated_through_the_nll():
    features, weight, labels = drawn()
    loss = cross_entropy(features, Head(weight), labels)
    assert not loss.nll.requires_grad


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bias_scale_and_softcap_of_the_head_are_in_the_loss_and_its_gradients(softcap, smoothing):
    features, weight, labels = drawn()
    bias = torch.nn.Parameter(torch.randn(11))
    logits = (0.3 * features @ weight.T + bias).flatten(0, 1)
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    head = Head(weight, bias, 0.3, softcap)
    torch.testing.assert_close(head(features).flatten(0, 1), logits)
    plain = F.cross_entropy(
        logits, labels.flatten(), label_smoothing=smoothing, ignore_index=IGNORE_INDEX, reduction="sum"
    )
    loss = cross_entropy(features, head, labels, smoothing, 4)
    torch.testing.assert_close(loss.total, plain)
    given = (features, weight, bias)
    mine, theirs = (torch.autograd.grad(3 * total, given) for total in (loss.total, plain))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_classes_is_that_of_torch(smoothing):
    torch.manual_seed(0)
    logits, labels = (
        torch.randn(7, 4, requires_grad=True),
        torch.tensor([0, 3, IGNORE_INDEX, 1, 1, 2, IGNORE_INDEX]),
    )
    loss = classification_loss(logits, labels, smoothing)
    wanted = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(loss.total, wanted)
    torch.testing.assert_close(loss.nll, F.cross_entropy(logits, labels, reduction="sum"))
    assert loss.count == 5
    mine, theirs = (torch.autograd.grad(total, logits)[0] for total in (loss.total, wanted))
    torch.testing.assert_close(mine, theirs)
