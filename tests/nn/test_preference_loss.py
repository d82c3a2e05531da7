"""Tests of nn/preference_loss.py against log-softmax and the equations of the papers in NumPy."""

import numpy as np
import pytest
import torch

from polyhead.nn.preference_loss import (
    KL_BLOCK,
    block_divergences,
    dpo_losses,
    kto_losses,
    sequence_log_probs,
)


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
