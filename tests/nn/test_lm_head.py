"""Tests of nn/lm_head.py."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.models.encoders_helpers import made
from torch import nn

TOKENS = torch.tensor([[4, 7, 2, 9, 5], [3, 6, 8, 1, 1]])

POS = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])


def test_scores_of_masked_tokens_pass_a_linear_map_gelu_norm_and_the_tied_embedding():
    model = made(lm_head_bias=True)
    x = model.encoder(TOKENS, POS)
    h = 0.5 * (z := model.transform(x)) * (1 + torch.erf(z / 2**0.5))
    h = nn.functional.layer_norm(h, (8,), model.transform_norm.weight, model.transform_norm.bias)
    wanted = h @ model.encoder.embedding.token.weight.T + model.head.bias
    torch.testing.assert_close(model(TOKENS, POS), wanted)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("relu", torch.relu),
        ("silu", lambda x: x * torch.sigmoid(x)),
        ("tanh", torch.tanh),
    ],
)
def test_the_map_below_the_scores_has_any_activation(name, function):
    model = made(head_transform_activation=name)
    h = function(model.transform(model.encoder(TOKENS, POS)))
    h = F.layer_norm(h, (8,), model.transform_norm.weight, model.transform_norm.bias)
    torch.testing.assert_close(
        model(TOKENS, POS), h @ model.encoder.embedding.token.weight.T, rtol=1e-4, atol=1e-5
    )


def test_without_a_map_the_head_reads_the_encoder_itself():
    model = made(head_transform_activation="none", lm_head_bias=True)
    wanted = model.encoder(TOKENS, POS) @ model.encoder.embedding.token.weight.T + model.head.bias
    torch.testing.assert_close(model(TOKENS, POS), wanted)
    assert model.transform is None
    assert not [name for name, _ in model.named_parameters() if "transform" in name]
