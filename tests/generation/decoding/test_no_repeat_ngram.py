"""Runs of tokens that may come once, against every run counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyhead.generation.decoding.no_repeat_ngram import ban_tokens, banned_ngrams


@pytest.mark.parametrize("n", range(6))
def test_what_would_come_again(n: int) -> None:
    rng = np.random.default_rng(n)
    seen = set()
    for length in [*range(8), *[40] * 20]:
        text = rng.integers(0, 3, length).tolist()
        runs = {tuple(text[i : i + n]) for i in range(length - n + 1)} if n else set()
        wanted = {
            token for token in range(3) if n and (*text[length - n + 1 :], token)[-n:] in runs and length >= n
        }
        assert set(banned_ngrams(text, n)) == wanted
        seen |= wanted
    assert seen == (set(range(3)) if n else set())


def test_it_is_gone_where_it_would_come() -> None:
    logits = torch.arange(6.0).view(2, 3)
    found = ban_tokens(logits, [[1, 1], []])
    assert found.tolist() == [[0, -torch.inf, 2], [3, 4, 5]]
    assert logits[0, 1] == 1
    assert ban_tokens(logits, [[], []]) is logits
