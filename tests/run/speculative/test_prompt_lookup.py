"""Tests of run/speculative/prompt_lookup.py."""

import math

import numpy as np
import pytest
import torch
from tests.generation.speculative.verify_helpers import WARM, Counting, Watching, say_all, slow
from tests.generation.speculative.verify_helpers import model as model

from polyhead.core.errors import UserError
from polyhead.run.speculative.prompt_lookup import NgramIndex, PromptLookup

NEVER = -1  # an end that no model says

PROMPTS = [[5, 6, 7], [9], [4, 4, 8, 10, 3, 4, 4], [1, 5]]


def test_guesses_of_the_text_leave_every_draw_as_it_was(model):
    """Look-up needs no draw of its own, so a seed gives the text of plain sampling, and its
    log-probabilities.
    """
    for seed in range(6):
        watched = Watching(PromptLookup(None, ngram=2, tokens=4))
        found, told = say_all(model, PROMPTS, watched, sampling=WARM, seed=seed, n=2, max_new_tokens=20)
        assert sum(len(tokens) for _, tokens in watched.guesses) > 20
        for row, tokens in enumerate(found):
            prompt = PROMPTS[row // 2]
            assert tokens == slow(model, prompt, 20, WARM, seed, row)
            with torch.no_grad():
                log_p = model(torch.tensor([[*prompt, *tokens]]))[0].log_softmax(-1)
            wanted = [float(log_p[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)]
            assert [token.log_prob for token in told if token.row == row] == pytest.approx(wanted, abs=1e-4)


def test_text_that_repeats_itself_takes_few_steps(model):
    """Where the model goes round in a circle the guesses go round with it."""
    plain = slow(model, [5], 60, eos_id=NEVER, max_len=1000)
    period = next(d for d in range(1, 30) if plain[-d:] == plain[-2 * d : -d])
    counted = Counting(model)
    found, _ = say_all(
        counted, [[5]], PromptLookup(None, tokens=9), max_new_tokens=60, eos_id=NEVER, max_len=None
    )
    assert found == [plain]
    repeated = next(i for i in range(60) if plain[i:-period] == plain[i + period :]) + period
    assert len(counted.widths) <= repeated + 3 + math.ceil((60 - repeated) / 10)


def followed(text, lengths, tokens):
    """As the docstring says it, by looking at every place."""
    for n in [n for n in lengths if n <= len(text)]:
        places = [i for i in range(n, len(text)) if text[i - n : i] == text[-n:]]
        if places:
            longer = list(text)
            for j in range(tokens):
                longer.append(longer[places[-1] + j])
            return longer[len(text) :]
    return []


@pytest.mark.parametrize("lengths", [(1,), (2, 1), (4, 3, 2, 1), (4, 3, 2), (3,)])
def test_what_followed_the_newest_same_words_is_guessed(lengths):
    rng = np.random.default_rng(len(lengths))
    for _ in range(30):
        text, index = rng.integers(0, 4, size=rng.integers(1, 6)).tolist(), NgramIndex(lengths)
        for _ in range(12):
            assert index.find_continuation(text, 6) == followed(text, lengths, 6)
            other = index.copy()
            branch = [*text, int(rng.integers(0, 4))]
            assert other.find_continuation(branch, 5) == followed(branch, lengths, 5)
            text += rng.integers(0, 4, size=rng.integers(1, 4)).tolist()
    assert NgramIndex((3, 2, 1)).find_continuation([1, 2, 3], 4) == []
    assert NgramIndex((3, 2, 1)).find_continuation([1, 2, 3, 9, 1, 2, 3], 0) == []
    assert NgramIndex((2, 1)).find_continuation([7, 8, 7, 8], 5) == [7, 8, 7, 8, 7]


@pytest.mark.parametrize(("option", "value"), [("ngram", 0), ("tokens", -2), ("min_ngram", 0)])
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(UserError, match=f"speculative 'lookup': {option} is {value}, expected at least 1"):
        PromptLookup(None, **{option: value})
    with pytest.raises(UserError, match="min_ngram is 3, expected at most ngram \\(2\\)"):
        PromptLookup(None, ngram=2, min_ngram=3)
    assert PromptLookup(None, ngram=4, min_ngram=2).ngram_sizes == range(4, 1, -1)
