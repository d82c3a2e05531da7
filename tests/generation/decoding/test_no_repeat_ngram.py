import numpy as np
import pytest
import torch

from polyhead.generation.decoding.no_repeat_ngram import ban_tokens, banned_ngrams


@pytest.mark.parametrize("n", range(6))
def test_banned_tokens_would_repeat_an_ngram(n):
    rng, all_banned = np.random.default_rng(n), set()
    for length in [*range(8), *[40] * 20]:
        text = rng.integers(0, 3, length).tolist()
        ngrams = {tuple(text[i : i + n]) for i in range(length - n + 1)} if n else set()
        suffix = tuple(text[length - n + 1 :])
        expected = {token for token in range(3) if n and (*suffix, token)[-n:] in ngrams and length >= n}
        assert set(banned_ngrams(text, n)) == expected
        all_banned |= expected
    assert all_banned == (set(range(3)) if n else set())


def test_banned_logits_are_minus_infinity():
    logits = torch.arange(6.0).view(2, 3)
    assert ban_tokens(logits, [[1, 1], []]).tolist() == [[0, -torch.inf, 2], [3, 4, 5]]
    assert logits[0, 1] == 1 and ban_tokens(logits, [[], []]) is logits
