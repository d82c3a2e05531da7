import itertools
import math

import pytest
import torch
from tests.generation.helpers import REFUSALS
from tests.generation.table_helpers import BOS, EOS, Table, exhaustive_search, plain_beam_search

from polyhead.core.errors import UserError
from polyhead.generation.decoding.beam_search import beam_search

SOURCE = (1, 2, 3)
ALPHAS = [0.0, 0.6, 1.0, 2.0, -0.5]


def search(model, sources=(SOURCE,), limit=5, **options):
    limits = [limit] * len(sources) if isinstance(limit, int) else limit
    source = torch.tensor(sources)
    return beam_search(model, source, None, bos_id=BOS, eos_id=EOS, max_new_tokens=limits, **options)


def assert_equal(hypotheses, expected):
    assert [tuple(h.tokens) for h in hypotheses] == [w.tokens for w in expected]
    assert [h.score for h in hypotheses] == pytest.approx([w.score for w in expected], abs=1e-5)
    assert [h.log_prob for h in hypotheses] == pytest.approx([w.log_prob for w in expected], abs=1e-5)


@pytest.mark.acceptance("C3", "C4")
@pytest.mark.parametrize(("seed", "alpha"), [*enumerate([*ALPHAS, 1.0])])
def test_full_beam_equals_exhaustive_search(alpha, seed):
    model = Table(seed, eos=0.5 * seed)
    expected = exhaustive_search(model, SOURCE, 5, alpha)
    assert len(expected) == 364
    options = {"beam_size": 364, "n_best": 364, "length_penalty": alpha, "early_stopping": "never"}
    assert_equal(search(model, **options)[0], expected)


@pytest.mark.acceptance("C4")
@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_stopping_rules_equal_plain_search(early, alpha):
    for seed, beam, limit, eos in itertools.product(range(4), (1, 2, 3, 5), (1, 2, 7), (0.0, 2.0)):
        model = Table(seed, eos=eos)
        options = {"beam_size": beam, "n_best": beam, "length_penalty": alpha, "early_stopping": early}
        [hypotheses] = search(model, limit=limit, **options)
        assert_equal(hypotheses, plain_beam_search(model, SOURCE, limit, alpha, beam, early))


@pytest.mark.acceptance("C5")
def test_lengths_in_narrow_beams_are_exact():
    for limit in (31, 32, 33, 63, 64, 65):
        [hypotheses] = search(Table(1, eos=-100.0), limit=limit, beam_size=2, n_best=2)
        assert [len(h.tokens) for h in hypotheses] == [limit, limit]
    for seed, prefix, min_new in itertools.product(range(10), ([], [1], [2, 2]), (0, 2, 4)):
        model = Table(seed, eos=2.0)
        options = {"beam_size": 2, "n_best": 2, "prefix": [prefix], "min_new_tokens": min_new}
        [hypotheses] = search(model, limit=6, length_penalty=1.0, **options)
        assert_equal(hypotheses, plain_beam_search(model, SOURCE, 6, 1.0, 2, False, prefix, min_new))


@pytest.mark.acceptance("C1")
def test_beam_output_does_not_depend_on_batch():
    model, sources = Table(3, eos=0.5), [(1, 2, 3), (3, 2, 1), (1, 1, 1), (2, 3, 3), (3, 3, 3)]
    limits, prefixes = [7, 1, 4, 9, 2], [[], [2], [1, 3, 2], [], [3]]

    def search_some(order):
        options = {"beam_size": 3, "n_best": 3, "length_penalty": 0.7, "prefix": [prefixes[i] for i in order]}
        return search(model, [sources[i] for i in order], [limits[i] for i in order], **options)

    single = [search_some([i])[0] for i in range(5)]
    for order in [*itertools.permutations(range(5))][::7]:
        assert search_some(order) == [single[i] for i in order]
    for hypotheses, source, limit, prefix in zip(single, sources, limits, prefixes, strict=True):
        assert_equal(hypotheses, plain_beam_search(model, source, limit, 0.7, 3, False, prefix))


@pytest.mark.acceptance("C3")
@pytest.mark.parametrize("prefix", [[], [2], [1, 3], [3, 3, 3, 3, 3]])
@pytest.mark.parametrize("min_new", [0, 1, 3, 9])
def test_prefix_and_min_length_equal_exhaustive_search(prefix, min_new):
    model, options = Table(11, eos=2.0), {"prefix": [prefix], "min_new_tokens": min_new}
    expected = exhaustive_search(model, SOURCE, 5, 1.0, prefix, min_new)
    [hypotheses] = search(model, beam_size=364, n_best=len(expected), early_stopping="never", **options)
    assert_equal(hypotheses, expected)
    [hypotheses] = search(model, beam_size=364, n_best=364, **options)
    assert len(hypotheses) == len(expected)


@pytest.mark.parametrize("beam_size", [1, 2, 364])
def test_prefix_may_have_banned_tokens(beam_size):
    model, options = Table(11), {"early_stopping": "never", "prefix": [[2, 1]]}
    (all_outputs,) = search(model, beam_size=364, n_best=364, **options)
    best = next(h for h in all_outputs if 2 not in h.tokens[2:])
    ((actual,),) = search(model, beam_size=beam_size, bad_token_ids=[2], **options)
    assert actual.tokens[:2] == [2, 1] and 2 not in actual.tokens[2:]
    if beam_size == 364:
        assert actual.tokens == best.tokens and actual.score == pytest.approx(best.score)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_dead_end_returns_the_output_so_far(beam_size):
    model, options = Table(11), {"beam_size": beam_size, "n_best": beam_size, "min_new_tokens": 14}
    (hypotheses,) = search(model, limit=15, no_repeat_ngram_size=2, **options)
    assert hypotheses
    for h in hypotheses:
        pairs = list(itertools.pairwise(h.tokens))
        assert len(set(pairs)) == len(pairs)
        assert {(h.tokens[-1], word) for word in (1, 2, 3)} <= set(pairs)
        log_prob = model.log_prob(SOURCE, h.tokens)
        assert (h.log_prob, h.score) == pytest.approx((log_prob, log_prob / len(h.tokens)), abs=1e-4)
    assert search(model, beam_size=1, bad_token_ids=[0, 1, 2, 3]) == [[([], 0.0, 0.0, 1)]]


@pytest.mark.parametrize(("options", "message"), REFUSALS["beams"])
def test_invalid_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        search(Table(0), **options)


class NanInSecondBeam(Table):
    """Where the other beams have enough extensions."""

    def logits_of(self, sources, prefixes):
        logits = super().logits_of(sources, prefixes)
        logits[1:2] = math.nan
        return logits


def test_models_with_nan_or_in_training_are_refused():
    for model in (Table(0, eos=math.nan), NanInSecondBeam(1)):
        with pytest.raises(UserError, match="output is NaN"):
            search(model, beam_size=2, early_stopping="never")
    model, options = Table(0), {"bos_id": BOS, "eos_id": EOS, "beam_size": 2, "max_new_tokens": []}
    assert beam_search(model, torch.zeros(0, 3, dtype=torch.long), None, **options) == []
    model.training = True
    with pytest.raises(AssertionError, match=r"model\.eval"):
        search(model, beam_size=2)
