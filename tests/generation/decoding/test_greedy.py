import numpy as np
import pytest
import torch

from polyhead.core.errors import UserError
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.decoding.greedy import greedy_search

EOS, BOS = 0, 4
SOURCES = [(1, 2, 3), (3, 2, 1), (1, 1, 1), (2, 3, 3), (3, 3, 3)]
LIMITS = [7, 1, 4, 9, 2]
PREFIXES = [[], [2], [1, 3, 2], [], [3]]


def run(search, model, sources, limits, **options):
    return search(
        model, torch.tensor(sources), None, bos_id=BOS, eos_id=EOS, max_new_tokens=limits, **options
    )


def likeliest(model, source, limit, alpha, prefix, min_new):
    """An argmax at a time over the whole prefix."""
    y, log_prob = [], 0.0
    while len(y) < limit and EOS not in y:
        table = model.log_probs(source, y)
        allowed = [w for w in range(4) if w != EOS or len(y) >= min_new]
        word = prefix[len(y)] if len(y) < len(prefix) else max(allowed, key=lambda w: table[w])
        log_prob += table[word]
        y.append(word)
    return [w for w in y if w != EOS], log_prob / len(y) ** alpha, log_prob


@pytest.mark.parametrize("min_new", [0, 2])
@pytest.mark.parametrize("eos", [0.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_argmax_over_the_whole_prefix_and_a_beam_of_one(table, seed, eos, min_new):
    model = table(seed, eos=eos)
    options = {"length_penalty": 0.6, "min_new_tokens": min_new, "prefix": PREFIXES}
    found = run(greedy_search, model, SOURCES, LIMITS, **options)
    for i, hypothesis in enumerate(found):
        tokens, score, log_prob = likeliest(model, SOURCES[i], LIMITS[i], 0.6, PREFIXES[i], min_new)
        assert hypothesis.tokens == tokens
        assert (hypothesis.score, hypothesis.log_prob) == pytest.approx((score, log_prob), abs=1e-5)
    for early in (True, False):
        beams = run(beam_search, model, SOURCES, LIMITS, beam_size=1, early_stopping=early, **options)
        assert [[h] for h in found] == beams


@pytest.mark.acceptance("C1")
def test_a_sentence_gets_the_same_greedy_result_in_any_batch(table):
    model = table(5, eos=1.0)
    whole = run(greedy_search, model, SOURCES, LIMITS)
    for order in np.random.default_rng(0).permuted([list(range(5))] * 20, axis=1).tolist():
        assert run(greedy_search, model, [SOURCES[i] for i in order], [LIMITS[i] for i in order]) == [
            whole[i] for i in order
        ]
    assert [run(greedy_search, model, [s], [n])[0] for s, n in zip(SOURCES, LIMITS, strict=True)] == whole


def test_greedy_refuses_what_beam_search_refuses(table):
    with pytest.raises(UserError, match="max_new_tokens of sentence 1 is 0"):
        run(greedy_search, table(0), SOURCES[:2], [3, 0])
    with pytest.raises(UserError, match="output is NaN"):
        run(greedy_search, table(0, eos=float("nan")), SOURCES[:2], [3, 3])
    assert run(greedy_search, table(0), torch.zeros(0, 3, dtype=torch.long).tolist(), []) == []
