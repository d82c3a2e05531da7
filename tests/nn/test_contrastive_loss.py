"""Tests of nn/contrastive_loss.py against loops over pairs and candidates."""

import math

import numpy as np
import pytest
import torch

from polyhead.nn.contrastive_loss import contrastive_losses, score_order_loss


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
