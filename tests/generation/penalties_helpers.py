"""Shared by the tests of penalties."""

import math

import pytest
import torch

from polyhead import ModelConfig, build

V, NEVER = 13, -1

RULES = {
    "frequency": {"frequency_penalty": 1.3},
    "presence": {"presence_penalty": 2.0},
    "said again": {"frequency_penalty": -0.7, "presence_penalty": -1.0},
    "a bias": {"logit_bias": ((3, 2.5), (4, -100.0))},
    "all": {"frequency_penalty": 0.4, "presence_penalty": 0.6, "logit_bias": ((0, 1.0), (12, -1.5))},
}


def make(kind="decoder", vocab_size=V, **sizes):
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64} | sizes
    model = build(ModelConfig(kind=kind, vocab_size=vocab_size, tie_embeddings="none", **sizes), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return make()


def changed(row, said, frequency_penalty=0.0, presence_penalty=0.0, logit_bias=()):
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, and the bias of j."""
    new = []
    for token, logit in enumerate(row):
        count = sum(other == token for other in said)
        logit = logit - count * frequency_penalty - float(count > 0) * presence_penalty
        new.append(logit + sum(bias for other, bias in logit_bias if other == token))
    return new


def plainly(model, prompt, rule, limit, temperature=0.0, numbers=None):
    """A text, all of it read anew for every token, and each drawn by adding probabilities up in a loop."""
    said = []
    for _ in range(limit):
        with torch.no_grad():
            row = model(torch.tensor([[*prompt, *said]]))[0, -1].double().tolist()
        row = changed(row, said, **rule)
        if not temperature:
            said.append(max(range(len(row)), key=row.__getitem__))
            continue
        weights = [math.exp((logit - max(row)) / temperature) for logit in row]
        wanted, total, token = numbers.random() * math.fsum(weights), weights[0], 0
        while total <= wanted:
            token += 1
            total += weights[token]
        said.append(token)
    return said
