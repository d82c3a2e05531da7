"""Tests of nn/pooling.py."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.models.encoders_helpers import made

TOKENS = torch.tensor([[4, 7, 2, 9, 5], [3, 6, 8, 1, 1]])

POS = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])


@pytest.mark.parametrize("bias", [True, False])
def test_a_mean_may_be_of_tokens_that_were_mapped(bias):
    pooling = {"name": "mean", "activation": "gelu", "map_first": True}
    model = made(pooling=pooling, head_transform_bias=bias, labels=["a", "b"])
    h = F.gelu(model.pooler.proj(model.encoder(TOKENS, POS)))
    means = torch.stack([row[pos >= 0].mean(0) for row, pos in zip(h, POS, strict=True)])
    torch.testing.assert_close(model(TOKENS, POS), model.classifier(means))


@pytest.mark.parametrize("activation", ["none", "tanh", "relu", "gelu"])
@pytest.mark.parametrize("name", ["first", "mean", "max", "last"])
def test_classes_are_scored_from_one_vector_of_the_tokens_that_are_there(name, activation):
    model = made(labels=["x", "y", "z"], pooling={"name": name, "activation": activation})
    apply = {"none": lambda x: x, "tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu}[activation]
    logits = model(TOKENS, POS)
    assert logits.shape == (2, 3)
    for row, length in ((0, 5), (1, 3)):
        x = model.encoder(TOKENS[row : row + 1, :length])[0]
        pooled = {"first": x[0], "mean": x.mean(0), "max": x.max(0).values, "last": x[-1]}[name]
        if activation != "none":
            pooled = apply(model.pooler.proj.weight @ pooled + model.pooler.proj.bias)
        wanted = model.classifier.weight @ pooled + model.classifier.bias
        torch.testing.assert_close(logits[row], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["first", "mean", "max", "last"])
def test_padding_on_the_left_is_as_inert_as_on_the_right(name):
    model = made(labels=["x", "y"], pooling=name)
    left = torch.tensor([[1, 1, 3, 6, 8]]), torch.tensor([[-1, -1, 0, 1, 2]])
    torch.testing.assert_close(model(*left), model(TOKENS[1:, :3]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["first", "mean", "max", "last"])
def test_a_row_of_padding_alone_is_not_in_the_statistics_of_a_norm(name):
    """As a rank without rows has one."""
    pooling = {"name": name, "activation": "tanh", "norm": True}
    seen = []
    for rows in (slice(0, 2), slice(0, 3)):
        model = made(pooling=pooling, labels=["x", "y"], norm="batchnorm", dropout=0.0).train()
        tokens, pos = torch.cat([TOKENS, TOKENS[:1]])[rows], torch.cat([POS, torch.full((1, 5), -1)])[rows]
        logits = model(tokens, pos)
        seen.append((logits[:2], model.pooler.norm.running_mean, model.pooler.norm.running_var))
    for ours, theirs in zip(*seen, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
