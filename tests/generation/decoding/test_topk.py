import pytest
import torch

from polyhead.generation.decoding.topk import _CHUNK_LOGITS, topk_log_probs


@pytest.mark.parametrize("width", [6, 1000])
def test_likeliest_are_log_probabilities_whatever_the_chunks(width):
    torch.manual_seed(0)
    logits = torch.randn(2 * _CHUNK_LOGITS // width + 3 if width > 6 else 50, width) * 3
    wanted = logits.double().log_softmax(-1)
    values, ids = topk_log_probs(logits, 4)
    torch.testing.assert_close(values.double(), wanted.topk(4).values, rtol=0, atol=1e-5)
    torch.testing.assert_close(values.double(), wanted.gather(1, ids), rtol=0, atol=1e-5)


def test_what_is_forbidden_is_gone_and_the_rest_keeps_its_probability():
    torch.manual_seed(0)
    logits = torch.randn(2 * _CHUNK_LOGITS // 1000, 1000)
    wanted = logits.double().log_softmax(-1)
    forced = torch.full((len(logits),), -1)
    forced[[0, 600, len(logits) - 1]] = torch.tensor([7, 999, 0])
    wanted[:, 3] = -torch.inf
    for row in (0, 600, len(logits) - 1):
        kept = wanted[row, forced[row]].item()
        wanted[row] = -torch.inf
        wanted[row, forced[row]] = kept
    wanted[600, 3], wanted[600, 999], forced[600] = logits.double().log_softmax(-1)[600, 3], -torch.inf, 3
    values, ids = topk_log_probs(logits, 5, banned_ids=[3], forced_ids=forced)
    torch.testing.assert_close(values.double(), wanted.topk(5).values, rtol=0, atol=1e-5)
    assert ids[0, 0] == 7
    assert ids[600, 0] == 3, "what is forced comes all the same"


def test_what_a_row_must_not_say_again_is_gone_in_that_row_alone():
    """And what is forced comes all the same."""
    torch.manual_seed(0)
    rows = _CHUNK_LOGITS // 1000 + 4
    logits = torch.randn(rows, 1000)
    wanted = logits.double().log_softmax(-1)
    again = [[int(i)] * (row % 2) + [int(j)] for row, (i, j) in enumerate(wanted.topk(2).indices)]
    forced = torch.full((rows,), -1)
    forced[3], forced[rows - 2] = again[3][0], again[rows - 2][0]
    for row, tokens in enumerate(again):
        if forced[row] >= 0:
            wanted[row] = wanted[row].where(torch.arange(1000) == forced[row], torch.tensor(-torch.inf))
        else:
            wanted[row, tokens] = -torch.inf
    values, ids = topk_log_probs(logits, 4, forced_ids=forced, repeated_ids=again)
    torch.testing.assert_close(values.double(), wanted.topk(4).values, rtol=0, atol=1e-5)
    free = forced < 0
    assert ids[free].equal(wanted.topk(4).indices[free])


def test_at_most_the_whole_vocabulary_comes_back():
    values, ids = topk_log_probs(torch.zeros(2, 3), 10)
    assert ids.shape == (2, 3)
    torch.testing.assert_close(values, torch.full((2, 3), 1 / 3).log())
