import itertools
import math

import pytest
import torch

from polyhead.core.errors import UserError
from polyhead.generation.decoding.beam_search import beam_search

EOS, BOS = 0, 4
SOURCE = (1, 2, 3)


def run(model, sources=(SOURCE,), limit=5, **options):
    """Beam search of sources of one length; a limit for all or one each."""
    limits = [limit] * len(sources) if isinstance(limit, int) else limit
    source = torch.tensor(sources)
    return beam_search(model, source, None, bos_id=BOS, eos_id=EOS, max_new_tokens=limits, **options)


def same(found, wanted):
    assert [tuple(h.tokens) for h in found] == [w.tokens for w in wanted]
    assert [h.score for h in found] == pytest.approx([w.score for w in wanted], abs=1e-5)
    assert [h.log_prob for h in found] == pytest.approx([w.log_prob for w in wanted], abs=1e-5)


@pytest.mark.acceptance("C3")
@pytest.mark.acceptance("C4")
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("seed", range(6))
def test_a_beam_that_holds_everything_finds_the_best_of_all_outputs(table, every, alpha, seed):
    model = table(seed, eos=0.5 * seed)
    wanted = every(model, SOURCE, 5, alpha)
    assert len(wanted) == 364
    [found] = run(model, beam_size=364, n_best=364, length_penalty=alpha, early_stopping="never")
    same(found, wanted)


@pytest.mark.acceptance("C4")
@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, -0.5])
def test_every_stopping_rule_is_that_of_the_plain_search(table, plain, early, alpha):
    for seed, beam, limit, eos in itertools.product(range(8), (1, 2, 3, 5), (1, 2, 7), (0.0, 2.0)):
        model = table(seed, eos=eos)
        [found] = run(
            model, limit=limit, beam_size=beam, n_best=beam, length_penalty=alpha, early_stopping=early
        )
        same(found, plain(model, SOURCE, limit, alpha, beam, early))


@pytest.mark.acceptance("C4")
def test_the_stopping_rules_differ_where_they_should(table):
    """Stopping at once may lose to waiting, and the heuristic to the exact bound; never
    the other way round.
    """
    gains = {("True", "False"): 0, ("False", "never"): 0}
    for seed in range(60):
        model = table(seed, eos=1.5)
        best = {
            str(early): run(model, limit=8, beam_size=3, length_penalty=2.0, early_stopping=early)[0][0].score
            for early in (True, False, "never")
        }
        for hasty, patient in gains:
            assert best[patient] >= best[hasty]
            gains[hasty, patient] += best[patient] > best[hasty]
    assert min(gains.values()) > 0


@pytest.mark.acceptance("C4")
@pytest.mark.parametrize("early", [True, False, "never"])
def test_unfinished_hypotheses_at_the_limit_fill_n_best(table, early):
    [found] = run(table(0, eos=-100.0), limit=4, beam_size=5, n_best=5, early_stopping=early)
    assert [len(h.tokens) for h in found] == [4] * 5
    assert [h.score for h in found] == pytest.approx([h.log_prob / 4 for h in found])


@pytest.mark.acceptance("C4")
def test_n_best_is_full_sorted_and_distinct(table):
    for seed, beam, limit in itertools.product(range(10), (1, 2, 4, 6), (1, 2, 3, 6)):
        [found] = run(table(seed), limit=limit, beam_size=beam, n_best=beam)
        existing = 4 if limit == 1 else 13
        assert len(found) == min(beam, existing)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert len({tuple(h.tokens) for h in found}) == len(found)


@pytest.mark.acceptance("C1")
def test_a_sentence_gets_the_same_result_in_any_batch(table, plain):
    model = table(3, eos=0.5)
    sources = [(1, 2, 3), (3, 2, 1), (1, 1, 1), (2, 3, 3), (3, 3, 3)]
    limits, prefixes = [7, 1, 4, 9, 2], [[], [2], [1, 3, 2], [], [3]]
    options = {"beam_size": 3, "n_best": 3, "length_penalty": 0.7}
    alone = [
        run(model, [s], [n], prefix=[p], **options)[0]
        for s, n, p in zip(sources, limits, prefixes, strict=True)
    ]
    for order in itertools.permutations(range(5)):
        batch = run(
            model,
            [sources[i] for i in order],
            [limits[i] for i in order],
            prefix=[prefixes[i] for i in order],
            **options,
        )
        assert batch == [alone[i] for i in order]
    for found, s, n, p in zip(alone, sources, limits, prefixes, strict=True):
        same(found, plain(model, s, n, 0.7, 3, False, p))


@pytest.mark.acceptance("C3")
@pytest.mark.parametrize("prefix", [[], [2], [1, 3], [3, 3, 3, 3, 3]])
@pytest.mark.parametrize("min_new", [0, 1, 3, 9])
def test_prefix_and_least_length_equal_the_constrained_exhaustive_search(table, every, prefix, min_new):
    model = table(11, eos=2.0)
    wanted = every(model, SOURCE, 5, 1.0, prefix, min_new)
    [found] = run(
        model,
        beam_size=364,
        n_best=len(wanted),
        early_stopping="never",
        prefix=[prefix],
        min_new_tokens=min_new,
    )
    same(found, wanted)
    [whole] = run(model, beam_size=364, n_best=364, prefix=[prefix], min_new_tokens=min_new)
    assert len(whole) == len(wanted)


def test_prefix_and_least_length_also_hold_in_narrow_beams(table, plain):
    for seed, prefix, min_new in itertools.product(range(10), ([], [1], [2, 2]), (0, 2, 4)):
        model = table(seed, eos=2.0)
        options = {"prefix": [prefix], "min_new_tokens": min_new}
        [found] = run(model, limit=6, beam_size=2, n_best=2, length_penalty=1.0, **options)
        same(found, plain(model, SOURCE, 6, 1.0, 2, False, prefix, min_new))
        assert all(h.tokens[: len(prefix)] == prefix and len(h.tokens) >= min_new for h in found)


@pytest.mark.acceptance("C5")
@pytest.mark.parametrize("limit", [31, 32, 33, 63, 64, 65])
def test_limits_around_the_growth_of_the_cache_are_exact(table, limit):
    [found] = run(table(1, eos=-100.0), limit=limit, beam_size=2, n_best=2)
    assert [len(h.tokens) for h in found] == [limit, limit]


@pytest.mark.parametrize("beam_size", [1, 2, 364])
def test_a_prefix_may_have_what_is_forbidden_elsewhere(table, beam_size):
    model = table(11)
    (plain,) = run(model, beam_size=364, n_best=364, early_stopping="never", prefix=[[2, 1]])
    wanted = [h for h in plain if 2 not in h.tokens[2:]]
    (found,) = run(model, beam_size=beam_size, early_stopping="never", prefix=[[2, 1]], bad_token_ids=[2])
    assert found[0].tokens[:2] == [2, 1] and 2 not in found[0].tokens[2:]
    if beam_size == 364:
        assert found[0].tokens == wanted[0].tokens and found[0].score == pytest.approx(wanted[0].score)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_where_nothing_may_follow_what_is_there_is_the_output(table, beam_size):
    model = table(11)
    options = {"beam_size": beam_size, "n_best": beam_size, "min_new_tokens": 14}
    (found,) = run(model, limit=15, no_repeat_ngram_size=2, **options)
    assert found
    for h in found:
        pairs = list(itertools.pairwise(h.tokens))
        assert len(set(pairs)) == len(pairs)
        assert {(h.tokens[-1], word) for word in (1, 2, 3)} <= set(pairs)
        log_prob = sum(model.log_probs(SOURCE, h.tokens[:i])[word] for i, word in enumerate(h.tokens))
        assert (h.log_prob, h.score) == pytest.approx((log_prob, log_prob / len(h.tokens)), abs=1e-4)
    (none,) = run(model, beam_size=1, bad_token_ids=[0, 1, 2, 3])
    assert none == [([], 0.0, 0.0)]


def test_the_end_of_sentence_counts_in_the_length(table):
    model = table(0, eos=100.0)
    [[best]] = run(model, beam_size=1, length_penalty=1.0, min_new_tokens=2)
    assert len(best.tokens) == 2
    assert best.score == pytest.approx(best.log_prob / 3)


def test_an_empty_batch_has_no_outputs(table):
    assert (
        beam_search(
            table(0),
            torch.zeros(0, 3, dtype=torch.long),
            None,
            bos_id=BOS,
            eos_id=EOS,
            beam_size=2,
            max_new_tokens=[],
        )
        == []
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 2, "n_best": 3}, r"n_best is 3, expected 1 to beam_size \(2\)"),
        ({"beam_size": 0}, "n_best is 1, expected 1 to beam_size"),
        ({"beam_size": 1, "limit": 0}, "max_new_tokens of sentence 0 is 0, expected at least 1"),
        ({"beam_size": 1, "limit": [3, 3]}, "1 sentences, but 2 max_new_tokens"),
        ({"beam_size": 1, "min_new_tokens": -1}, "min_new_tokens is -1"),
        (
            {"beam_size": 1, "prefix": [[1] * 6]},
            "prefix of sentence 0 has 6 tokens, more than max_new_tokens",
        ),
        ({"beam_size": 1, "prefix": [[1, EOS]]}, "prefix of sentence 0 contains the end-of-sentence token 0"),
    ],
)
def test_impossible_wishes_are_refused(table, options, message):
    with pytest.raises(UserError, match=message):
        run(table(0), **options)


def test_not_a_number_is_an_error_and_not_a_translation(table):
    model = table(0)
    model.eos = math.nan
    with pytest.raises(UserError, match="output is NaN"):
        run(model, beam_size=2)


def test_a_model_in_training_mode_is_refused(table):
    model = table(0)
    model.training = True
    with pytest.raises(AssertionError, match=r"model\.eval"):
        run(model, beam_size=2)


def test_one_hypothesis_that_is_not_a_number_is_said_where_the_others_have_extensions_enough(table):
    class Holed(table):
        def say(self, sources, prefixes):
            logits = super().say(sources, prefixes)
            logits[1:2] = math.nan  # of the first request's beams the second, as soon as there is one
            return logits

    with pytest.raises(UserError, match="output is NaN"):
        run(Holed(1), beam_size=2, early_stopping="never")
