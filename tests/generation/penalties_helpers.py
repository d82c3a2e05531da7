"""Frequency and presence penalties and a bias of logits, written out token by token."""

import math

import pytest
import torch
from tests.generation.helpers import build_noisy

from polyhead import ModelConfig

V, NO_EOS = 13, -1
PROMPTS = [[5, 6, 7, 5], [9], [4, 4, 8, 10, 3, 4, 4]]
PENALTIES = {
    "frequency": {"frequency_penalty": 1.3},
    "presence": {"presence_penalty": 2.0},
    "negative": {"frequency_penalty": -0.7, "presence_penalty": -1.0},
    "bias": {"logit_bias": ((3, 2.5), (4, -100.0))},
    "all": {"frequency_penalty": 0.4, "presence_penalty": 0.6, "logit_bias": ((0, 1.0), (12, -1.5))},
}


def make(kind="decoder", vocab_size=V, **sizes):
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64} | sizes
    config = ModelConfig(kind=kind, vocab_size=vocab_size, tie_embeddings="none", **sizes)
    return build_noisy(config, 1, 0.3, 2)


@pytest.fixture(scope="module")
def model():
    return make()


def penalise(row, output, frequency_penalty=0.0, presence_penalty=0.0, logit_bias=()):
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence + bias[j], as OpenAI writes it."""
    bias, counts = dict(logit_bias), [output.count(token) for token in range(len(row))]
    return [
        logit - n * frequency_penalty - (n > 0) * presence_penalty + bias.get(token, 0.0)
        for token, (logit, n) in enumerate(zip(row, counts, strict=True))
    ]


@torch.no_grad()
def decode_penalised(model, prompt, penalties, limit, temperature=0.0, rng=None):
    """Plain decoding without a cache; a sample adds probabilities up in a loop."""
    output = []
    for _ in range(limit):
        row = model(torch.tensor([[*prompt, *output]]))[0, -1].double().tolist()
        row = penalise(row, output, **penalties)
        if not temperature:
            output.append(max(range(len(row)), key=row.__getitem__))
            continue
        weights = [math.exp((logit - max(row)) / temperature) for logit in row]
        threshold, total, token = rng.random() * math.fsum(weights), weights[0], 0
        while total <= threshold:
            token += 1
            total += weights[token]
        output.append(token)
    return output
