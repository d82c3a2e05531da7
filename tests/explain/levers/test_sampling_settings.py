import pytest
import torch
from tests.explain.levers.levers_helpers import make_lever_input

from polyhead.core.errors import UserError
from polyhead.explain.levers.decoding import SAMPLING_LEVER
from polyhead.explain.levers.table import compute_case


def compute_probabilities(setting):
    lever_input = make_lever_input()
    output = SAMPLING_LEVER.compute(lever_input, SAMPLING_LEVER.check_setting(lever_input, setting))
    return lever_input.plain_logits, output.logits.softmax(-1)


@pytest.mark.parametrize("temperature", [0, 0.5, 1.5])
def test_temperature_divides_logits(temperature):
    logits, p = compute_probabilities({"temperature": temperature})
    if temperature == 0:
        expected = torch.nn.functional.one_hot(logits.argmax(-1), logits.size(-1)).float()
    else:
        expected = (logits / temperature).softmax(-1)
    torch.testing.assert_close(p, expected)


def test_top_k_and_p_keep_proportions():
    logits, p = compute_probabilities({"top_k": 5})
    expected = logits.softmax(-1) * (logits >= logits.topk(5).values[:, -1:])
    torch.testing.assert_close(p, expected / expected.sum(-1, keepdim=True))
    # the smallest set of that mass
    logits, p = compute_probabilities({"top_p": 0.9})
    for row, plain in zip(p, logits.softmax(-1), strict=True):
        order = plain.argsort(descending=True)
        n = next(n for n in range(1, len(order) + 1) if plain[order[:n]].sum() >= 0.9)
        expected = torch.zeros_like(plain).index_copy(0, order[:n], plain[order[:n]])
        torch.testing.assert_close(row, expected / expected.sum())
    with pytest.raises(UserError, match="generates no text"):
        compute_case(make_lever_input("encoder"), "sampling", {"top_k": 2})
