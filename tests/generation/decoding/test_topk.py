import pytest
import torch

from polyhead.generation.decoding.sampling import _CHUNK_LOGITS, topk_log_probs


def assert_topk(logits, expected, k, **options):
    values, ids = topk_log_probs(logits, k, **options)
    torch.testing.assert_close(values.double(), expected.topk(k).values, rtol=0, atol=1e-5)
    finite = values.isfinite()
    torch.testing.assert_close(values.double()[finite], expected.gather(1, ids)[finite], rtol=0, atol=1e-5)
    return ids


@pytest.mark.parametrize("width", [6, 1000])
def test_topk_log_probs_in_chunks(width):
    torch.manual_seed(0)
    logits = torch.randn(2 * _CHUNK_LOGITS // width + 3 if width > 6 else 50, width) * 3
    assert_topk(logits, logits.double().log_softmax(-1), 4)
    values, ids = topk_log_probs(torch.zeros(2, 3), 10)  # more than the vocabulary has
    assert ids.shape == (2, 3)
    torch.testing.assert_close(values, torch.full((2, 3), 1 / 3).log())


def test_banned_forced_and_repeated_ids():
    torch.manual_seed(0)
    logits = torch.randn(2 * _CHUNK_LOGITS // 1000, 1000)
    expected = logits.double().log_softmax(-1)
    token_by_row = {0: 7, 600: 3, len(logits) - 1: 0}  # in row 600, a token that is banned
    kept_values = {row: expected[row, token].item() for row, token in token_by_row.items()}
    expected[:, 3] = -torch.inf
    forced_ids = [[] for _ in logits]
    for row, token in token_by_row.items():
        forced_ids[row] = [token]
        expected[row] = -torch.inf
        expected[row, token] = kept_values[row]
    ids = assert_topk(logits, expected, 5, banned_ids=[3], forced_ids=forced_ids)
    assert (ids[0, 0], ids[600, 0]) == (7, 3)
    torch.manual_seed(0)
    rows = _CHUNK_LOGITS // 1000 + 4
    logits = torch.randn(rows, 1000)
    expected = logits.double().log_softmax(-1)
    repeated_ids = [[int(i)] * (row % 2) + [int(j)] for row, (i, j) in enumerate(expected.topk(2).indices)]
    forced_ids = [[] for _ in range(rows)]
    for row in (3, rows - 2):
        forced_ids[row] = [repeated_ids[row][0], 999]
    for row, tokens in enumerate(repeated_ids):
        if forced_ids[row]:
            expected[row, ~torch.isin(torch.arange(1000), torch.tensor(forced_ids[row]))] = -torch.inf
        else:
            expected[row, tokens] = -torch.inf
    ids = assert_topk(logits, expected, 4, forced_ids=forced_ids, repeated_ids=repeated_ids)
    free = [row for row in range(rows) if not forced_ids[row]]
    assert ids[free].equal(expected.topk(4).indices[free])
