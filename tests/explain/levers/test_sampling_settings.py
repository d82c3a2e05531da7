"""Sampling settings against softmax(logits / T) and the definitions of top-k and top-p."""

from __future__ import annotations

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_model, run_model

from polyhead.core.errors import UserError
from polyhead.explain.levers.sampling_settings import SAMPLING_LEVER
from polyhead.explain.levers.table import compute_case


def distribution(setting):
    lever_input = make_input(make_model())
    output = SAMPLING_LEVER.compute(lever_input, SAMPLING_LEVER.check_setting(lever_input, setting))
    return run_model(lever_input.model, lever_input), output.logits.softmax(-1)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_temperature_divides_the_logits(temperature):
    logits, p = distribution({"temperature": temperature})
    torch.testing.assert_close(p, (logits / temperature).softmax(-1))


def test_temperature_0_is_the_most_likely_token():
    logits, p = distribution({"temperature": 0})
    torch.testing.assert_close(p, torch.nn.functional.one_hot(logits.argmax(-1), logits.size(-1)).float())


def test_top_k_keeps_k_tokens_in_their_proportions():
    logits, p = distribution({"top_k": 5})
    kept = logits.softmax(-1) * (logits >= logits.topk(5).values[:, -1:])
    torch.testing.assert_close(p, kept / kept.sum(-1, keepdim=True))


def test_top_p_keeps_the_smallest_set_of_that_mass():
    logits, p = distribution({"top_p": 0.9})
    for row, plain in zip(p, logits.softmax(-1), strict=True):
        order = plain.argsort(descending=True)
        n = next(n for n in range(1, len(order) + 1) if plain[order[:n]].sum() >= 0.9)
        expected = torch.zeros_like(plain).index_copy(0, order[:n], plain[order[:n]])
        torch.testing.assert_close(row, expected / expected.sum())


def test_an_encoder_samples_nothing():
    with pytest.raises(UserError, match="generates no text"):
        compute_case(make_input(make_model("encoder")), "sampling", {"top_k": 2})
