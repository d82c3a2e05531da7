import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from polyhead.nn.embedding import Head
from polyhead.nn.loss import (
    IGNORE_INDEX,
    KL_BLOCK,
    block_divergences,
    classification_loss,
    contrastive_losses,
    cross_entropy,
    dpo_losses,
    kto_losses,
    score_order_loss,
    sequence_log_probs,
)


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


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_contrastive_losses_are_those_of_loop(temperature):
    torch.manual_seed(0)
    anchors, candidates = torch.randn(5, 8, requires_grad=True), torch.randn(9, 8)
    excluded = torch.rand(5, 9) < 0.3
    excluded[:, :5].fill_diagonal_(False)
    losses = contrastive_losses(anchors, candidates, excluded, temperature)
    a, c = anchors.detach().double().numpy(), candidates.double().numpy()
    for i in range(5):
        powers = [math.exp(cosine(a[i], c[j]) / temperature) for j in range(9) if not excluded[i, j]]
        expected = -math.log(math.exp(cosine(a[i], c[i]) / temperature) / sum(powers))
        assert losses[i].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    losses.sum().backward()
    assert anchors.grad.isfinite().all()


def test_order_loss_is_that_of_loop():
    torch.manual_seed(1)
    a, b = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4)
    scores = torch.tensor([0.0, 5.0, 2.5, 2.5, 1.0, 4.0])
    loss = score_order_loss(a, b, scores, 0.1)
    rows = [cosine(x, y) for x, y in zip(a.detach().double().numpy(), b.double().numpy(), strict=True)]
    pairs = [(i, j) for i in range(6) for j in range(6) if scores[i] > scores[j]]
    assert len(pairs) == 14  # of 15, as two scores are equal
    expected = math.log1p(sum(math.exp((rows[j] - rows[i]) / 0.1) for i, j in pairs))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert a.grad.isfinite().all()
    assert score_order_loss(a[:1], b[:1], scores[:1], 0.1).item() == 0


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_log_probs_are_those_of_numpy():
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 11, bias=False)
    features = torch.randn(4, 300, 8, requires_grad=True)  # several chunks of logits
    labels = torch.randint(0, 11, (4, 300))
    labels[0, :50], labels[1, 7], labels[2] = -100, -100, -100
    log_probs = sequence_log_probs(features, head, labels, labels)
    logits = (features @ head.weight.T).detach().numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for row in range(4):
        known = [t for t in range(300) if labels[row, t] >= 0]
        expected = sum(log_p[row, t, labels[row, t]] for t in known)
        assert log_probs[row].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5])
    (gradient,) = torch.autograd.grad((log_probs * weights).sum(), features)
    for row, t in ((0, 60), (1, 8), (3, 299), (2, 4)):
        d = -np.exp(log_p[row, t])
        d[max(int(labels[row, t]), 0)] += 1
        expected = float(weights[row]) * (labels[row, t] >= 0).item() * d @ head.weight.detach().numpy()
        assert gradient[row, t].numpy() == pytest.approx(expected, abs=1e-5)


def test_losses_are_those_of_the_papers():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 7)) * 4
    chosen, rejected = map(torch.from_numpy, (a, b))
    for beta, smoothing in ((0.1, 0.0), (0.5, 0.2)):
        h = beta * (a - b)
        expected = -(1 - smoothing) * np.log(sigmoid(h)) - smoothing * np.log(sigmoid(-h))
        assert dpo_losses(chosen, rejected, beta, smoothing).numpy() == pytest.approx(expected)
    is_chosen = rng.random(7) < 0.5
    z0 = np.abs(rng.normal(size=7))
    losses = kto_losses(chosen, torch.from_numpy(is_chosen), torch.from_numpy(z0), 0.3, (1.5, 0.5))
    values = np.where(is_chosen, sigmoid(0.3 * (a - z0)), sigmoid(0.3 * (z0 - a)))
    assert losses.numpy() == pytest.approx(np.where(is_chosen, 1.5, 0.5) * (1 - values))


def test_divergence_is_the_mean_of_a_block():
    ratios = torch.tensor([*[1.0] * (KL_BLOCK - 1), 9.0, *[-3.0] * KL_BLOCK, 2.0, 4.0])
    expected = [(KL_BLOCK + 8) / KL_BLOCK] * KL_BLOCK + [0.0] * KL_BLOCK + [3.0] * 2
    assert block_divergences(ratios).tolist() == pytest.approx(expected)
    assert block_divergences(ratios[:0]).tolist() == []
