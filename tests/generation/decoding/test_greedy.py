import numpy as np
import pytest
import torch
from tests.generation.table_helpers import BOS, EOS, Table

from polyhead.core.errors import UserError
from polyhead.generation.decoding.beam_search import beam_search, greedy_search

SOURCES = [(1, 2, 3), (3, 2, 1), (1, 1, 1), (2, 3, 3), (3, 3, 3)]
LIMITS = [7, 1, 4, 9, 2]
PREFIXES = [[], [2], [1, 3, 2], [], [3]]


def search(model, sources, limits, method=greedy_search, **options):
    source = torch.tensor(sources)
    return method(model, source, None, bos_id=BOS, eos_id=EOS, max_new_tokens=limits, **options)


def argmax_search(model, source, limit, alpha, prefix, min_new):
    y, log_prob = [], 0.0
    while len(y) < limit and EOS not in y:
        log_probs = model.log_probs(source, y)
        allowed = [w for w in range(4) if w != EOS or len(y) >= min_new]
        word = prefix[len(y)] if len(y) < len(prefix) else max(allowed, key=lambda w: log_probs[w])
        log_prob += log_probs[word]
        y.append(word)
    return [w for w in y if w != EOS], log_prob / len(y) ** alpha, log_prob


@pytest.mark.parametrize("min_new", [0, 2])
@pytest.mark.parametrize("eos", [0.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_is_argmax_and_equals_beam_1(seed, eos, min_new):
    model = Table(seed, eos=eos)
    options = {"length_penalty": 0.6, "min_new_tokens": min_new, "prefix": PREFIXES}
    hypotheses = search(model, SOURCES, LIMITS, **options)
    for i, hypothesis in enumerate(hypotheses):
        tokens, score, log_prob = argmax_search(model, SOURCES[i], LIMITS[i], 0.6, PREFIXES[i], min_new)
        assert hypothesis.tokens == tokens
        assert (hypothesis.score, hypothesis.log_prob) == pytest.approx((score, log_prob), abs=1e-5)
    for early in (True, False):
        beams = search(model, SOURCES, LIMITS, beam_search, beam_size=1, early_stopping=early, **options)
        assert [[h] for h in hypotheses] == beams


@pytest.mark.acceptance("C1")
def test_greedy_output_does_not_depend_on_batch():
    model = Table(5, eos=1.0)
    batch = search(model, SOURCES, LIMITS)
    for order in [
        *np.random.default_rng(0).permuted([list(range(5))] * 20, axis=1).tolist(),
        *([i] for i in range(5)),
    ]:
        sources, limits = [SOURCES[i] for i in order], [LIMITS[i] for i in order]
        assert search(model, sources, limits) == [batch[i] for i in order]
    with pytest.raises(UserError, match="max_new_tokens of sentence 2 is 0"):
        search(Table(0), SOURCES[:2], [3, 0])
    with pytest.raises(UserError, match="output is NaN"):
        search(Table(0, eos=float("nan")), SOURCES[:2], [3, 3])
    assert search(Table(0), torch.zeros(0, 3, dtype=torch.long).tolist(), []) == []
