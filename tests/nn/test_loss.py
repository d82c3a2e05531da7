import pytest
import torch
import torch.nn.functional as F

from polyhead.nn.embedding import Head
from polyhead.nn.loss import IGNORE_INDEX, classification_loss, cross_entropy


def make_inputs(rows=(3, 7), width=6, vocab=11, n_ignored=4, dtype=torch.float32):
    torch.manual_seed(0)
    features = (2 * torch.randn(*rows, width)).to(dtype).requires_grad_()
    weight = torch.randn(vocab, width).to(dtype).requires_grad_()
    labels = torch.randint(0, vocab, rows)
    labels.view(-1)[torch.randperm(labels.numel())[:n_ignored]] = IGNORE_INDEX
    return features, weight, labels


def assert_equal_to_torch(loss, logits, labels, smoothing, leaves):
    logits, labels = logits.flatten(0, -2), labels.flatten()
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(loss.nll, F.cross_entropy(logits, labels, reduction="sum"))
    assert not loss.nll.requires_grad and loss.count == int((labels != IGNORE_INDEX).sum())
    actual, expected = (torch.autograd.grad(3 * total, leaves) for total in (loss.total, expected))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    return actual


@pytest.mark.parametrize("chunk", [1, 4, 17, 512])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_sums_and_gradients_equal_those_of_torch(smoothing, chunk):
    features, weight, labels = make_inputs()
    loss = cross_entropy(features, Head(weight), labels, smoothing, chunk)
    gradients = assert_equal_to_torch(loss, features @ weight.T, labels, smoothing, (features, weight))
    assert (gradients[0][labels == IGNORE_INDEX] == 0).all()


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bias_scale_and_softcap_of_the_head_apply(softcap, smoothing):
    features, weight, labels = make_inputs()
    bias = torch.nn.Parameter(torch.randn(11))
    logits = 0.3 * features @ weight.T + bias
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    head = Head(weight, bias, 0.3, softcap)
    torch.testing.assert_close(head(features), logits)
    loss = cross_entropy(features, head, labels, smoothing, 4)
    assert_equal_to_torch(loss, logits, labels, smoothing, (features, weight, bias))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification_loss_equals_that_of_torch(smoothing):
    logits = torch.randn(7, 4, requires_grad=True)
    labels = torch.tensor([0, 3, IGNORE_INDEX, 1, 1, 2, IGNORE_INDEX])
    loss = classification_loss(logits, labels, smoothing)
    assert_equal_to_torch(loss, logits, labels, smoothing, (logits,))


@pytest.mark.acceptance("A5")
@pytest.mark.parametrize("rows", [(2, 3), (0, 3)])
def test_batch_without_labels_gives_zero_and_no_gradient(rows):
    features, weight, labels = make_inputs(rows=rows, n_ignored=0)
    loss = cross_entropy(features, Head(weight), torch.full_like(labels, IGNORE_INDEX), 0.1)
    loss.total.backward()
    assert float(loss.total.detach()) == float(loss.nll.detach()) == loss.count == 0
    assert (features.grad == 0).all() and (weight.grad == 0).all()


@pytest.mark.acceptance("A6")
@pytest.mark.parametrize("cuts", [[1, 5], [1, 1, 4], [2, 2, 2]], ids=str)
def test_sums_over_parts_of_a_batch_add_up(cuts):
    features, weight, labels = make_inputs(rows=(6, 7), n_ignored=20)
    batch_loss = cross_entropy(features, Head(weight), labels, 0.1)
    pairs = zip(features.split(cuts), labels.split(cuts), strict=True)
    parts = [cross_entropy(f, Head(weight), y, 0.1) for f, y in pairs]
    assert sum(p.count for p in parts) == batch_loss.count
    totals = batch_loss.total, sum(p.total for p in parts)
    torch.testing.assert_close(*totals)
    gradients = (torch.autograd.grad(total, (features, weight)) for total in totals)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_losses_in_bf16_and_of_frozen_heads():
    features, weight, labels = make_inputs(width=32, vocab=101)
    plain = cross_entropy(features, Head(weight), labels, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(features, Head(weight), labels, 0.1)
    assert loss.total.dtype == torch.float32 and not torch.equal(loss.total, plain.total)
    torch.testing.assert_close(loss.total, plain.total, rtol=1e-2, atol=0)
    actual, expected = (torch.autograd.grad(x.total, (features, weight)) for x in (loss, plain))
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() < 0.03 * b.norm()
    features, weight, labels = make_inputs()
    (expected,) = torch.autograd.grad(cross_entropy(features, Head(weight), labels).total, features)
    cross_entropy(features, Head(weight.requires_grad_(False)), labels).total.backward()
    assert torch.equal(features.grad, expected) and weight.grad is None
    features, weight, labels = make_inputs(dtype=torch.bfloat16)
    loss = cross_entropy(features, Head(weight), labels)
    loss.total.backward()
    assert loss.total.dtype == torch.float32
    assert (features.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)


def test_huge_logits_stay_finite_with_and_without_gradients():
    features, weight, labels = make_inputs(n_ignored=0)
    loss = cross_entropy(features * 1e4, Head(weight), labels, 0.1)
    loss.total.backward()
    assert loss.total.isfinite() and features.grad.isfinite().all()
    with torch.no_grad():
        total = cross_entropy(features * 1e4, Head(weight), labels, 0.1).total
    assert not total.requires_grad and torch.equal(total, loss.total)
