import math

import numpy as np
import pytest
import torch
from tests.generation.helpers import decode_plain
from tests.generation.speculative.verify_helpers import WARM, Counting, Watching, speculate
from tests.generation.speculative.verify_helpers import model as model

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import SPECULATIVE
from polyhead.run.speculative.prompt_lookup import NgramIndex, PromptLookup

NO_EOS = -1
PROMPTS = [[5, 6, 7], [9], [4, 4, 8, 10, 3, 4, 4], [1, 5]]


def test_lookup_does_not_change_samples_and_log_probabilities(model):
    """It draws no random numbers, so a seed gives the tokens of plain sampling."""
    for seed in range(3):
        drafter = Watching(PromptLookup(None, ngram=2, tokens=4))
        rows, outputs = speculate(model, PROMPTS, drafter, sampling=WARM, seed=seed, n=2, max_new_tokens=20)
        assert sum(len(tokens) for _, tokens in drafter.guesses) > 20
        for row, tokens in enumerate(rows):
            prompt = PROMPTS[row // 2]
            assert tokens == decode_plain(model, prompt, 20, WARM, seed, row)
            with torch.no_grad():
                log_p = model(torch.tensor([[*prompt, *tokens]]))[0].log_softmax(-1)
            expected = log_p[range(len(prompt) - 1, len(prompt) - 1 + len(tokens)), tokens].tolist()
            actual = [output.log_prob for output in outputs if output.row == row]
            assert actual == pytest.approx(expected, abs=1e-4)


def test_periodic_text_takes_few_steps(model):
    expected = decode_plain(model, [5], 60, eos_id=NO_EOS, max_len=1000)
    period = next(d for d in range(1, 30) if expected[-d:] == expected[-2 * d : -d])
    counter = Counting(model)
    options = {"max_new_tokens": 60, "eos_id": NO_EOS, "max_len": None}
    rows, _ = speculate(counter, [[5]], PromptLookup(None, tokens=9), **options)
    assert rows == [expected]
    start = next(i for i in range(60) if expected[i:-period] == expected[i + period :]) + period
    assert len(counter.widths) <= start + 3 + math.ceil((60 - start) / 10)


def find_continuation(text, sizes, n_tokens):
    for n in [n for n in sizes if n <= len(text)]:
        matches = [i for i in range(n, len(text)) if text[i - n : i] == text[-n:]]
        if matches:
            longer = list(text)
            for j in range(n_tokens):
                longer.append(longer[matches[-1] + j])
            return longer[len(text) :]
    return []


@pytest.mark.parametrize("sizes", [(1,), (2, 1), (4, 3, 2, 1), (4, 3, 2), (3,)])
def test_index_finds_the_latest_match(sizes):
    rng = np.random.default_rng(len(sizes))
    for _ in range(30):
        text, index = rng.integers(0, 4, size=rng.integers(1, 6)).tolist(), NgramIndex(sizes)
        for _ in range(12):
            assert index.find_continuation(text, 6) == find_continuation(text, sizes, 6)
            branch = [*text, int(rng.integers(0, 4))]
            assert index.copy().find_continuation(branch, 5) == find_continuation(branch, sizes, 5)
            text += rng.integers(0, 4, size=rng.integers(1, 4)).tolist()


def test_index_and_options_at_their_limits():
    assert NgramIndex((3, 2, 1)).find_continuation([1, 2, 3], 4) == []
    assert NgramIndex((3, 2, 1)).find_continuation([1, 2, 3, 9, 1, 2, 3], 0) == []
    assert NgramIndex((2, 1)).find_continuation([7, 8, 7, 8], 5) == [7, 8, 7, 8, 7]
    for option, value in (("ngram", 0), ("tokens", -2), ("min_ngram", 0)):
        with pytest.raises(UserError, match=f"{option} of speculative 'lookup': {value} is out of range"):
            SPECULATIVE.build(Choice("lookup", **{option: value}), None)
    with pytest.raises(UserError, match="min_ngram is 3, expected at most ngram \\(2\\)"):
        PromptLookup(None, ngram=2, min_ngram=3)
    assert PromptLookup(None, ngram=4, min_ngram=2).ngram_sizes == range(4, 1, -1)
