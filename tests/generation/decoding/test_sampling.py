"""The steps of sampling against plain definitions, and draws against their probabilities."""

import itertools
import math

import numpy as np
import pytest
import torch
from tests.generation.penalties_helpers import RULES, changed

from polyhead.core.errors import UserError
from polyhead.generation.decoding.sampling import (
    NUM_CANDIDATES,
    RandomStreams,
    Sampling,
    apply_repetition_penalty,
    sample_inverse_cdf,
)

transformers = pytest.importorskip("transformers")
INF = float("inf")


def rows(seed, n=40, v=13):
    """Random logits; in half of the rows many are equal."""
    torch.manual_seed(seed)
    x = 2 * torch.randn(n, v)
    x[::2] = x[::2].round()
    return x


def softmax(row):
    e = [math.exp(x) for x in row]
    return [x / sum(e) for x in e]


def kept(logits):
    return [[i for i, x in enumerate(row) if x > -INF] for row in logits.tolist()]


@pytest.mark.parametrize("k", [1, 2, 5, 13, 99])
def test_top_k_keeps_the_k_likeliest_and_their_equals(k):
    logits = rows(0)
    out = Sampling(top_k=k).apply(logits, [])
    for row, found in zip(logits.tolist(), kept(out), strict=True):
        least = sorted(row, reverse=True)[min(k, len(row)) - 1]
        assert found == [i for i, x in enumerate(row) if x >= least]
    assert torch.equal(out[out > -INF], logits[out > -INF])
    assert any(len(found) > k for found in kept(out)) or k > 12


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_the_fewest_likeliest_that_have_p_together(p):
    logits = rows(1)
    for row, found in zip(logits.tolist(), kept(Sampling(top_p=p).apply(logits, [])), strict=True):
        wanted, total = [], 0.0
        for i in sorted(range(len(row)), key=lambda i: -row[i]):  # of equals the first
            if total >= p:
                break
            wanted.append(i)
            total += softmax(row)[i]
        assert found == sorted(wanted)


@pytest.mark.parametrize("p", [0.01, 0.3, 1.0])
def test_min_p_keeps_what_is_so_likely_beside_the_likeliest(p):
    logits = rows(2)
    for row, found in zip(logits.tolist(), kept(Sampling(min_p=p).apply(logits, [])), strict=True):
        likely = softmax(row)
        assert found == [i for i, x in enumerate(likely) if x > max(likely) * p * (1 - 1e-6)]


def test_the_penalty_divides_what_is_positive_and_multiplies_the_rest():
    logits = torch.tensor([[2.0, -2.0, 0.0, 4.0], [1.0, 2.0, 3.0, -4.0]])
    out = apply_repetition_penalty(logits, [[0, 1, 1, 2], []], 2.0)
    assert out.tolist() == [[1.0, -4.0, 0.0, 4.0], [1.0, 2.0, 3.0, -4.0]]
    assert logits[0, 0] == 2.0  # what is given stays as it is


def plainly(row, t, k, p, least):
    """Which tokens of one row may come, by sorting all of them and adding up exactly."""
    order = sorted(range(len(row)), key=lambda i: -row[i])  # of equals the first
    weights = [math.exp((row[i] - row[order[0]]) / t) for i in order]
    likely = [w for i, w in zip(order, weights, strict=True) if row[i] >= row[order[k - 1]]] if k else weights
    before = np.cumsum([0.0, *likely[:-1]]) / math.fsum(likely)
    return sorted(i for i, w, b in zip(order, likely, before, strict=False) if b < p and w >= least and w)


@pytest.mark.parametrize("flat", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("given", [
    {"top_k": 3 * NUM_CANDIDATES}, {"top_p": 0.9}, {"top_p": 0.01}, {"min_p": 0.02},
        {"top_k": 2 * NUM_CANDIDATES, "top_p": 0.7},
    {"top_p": 0.7, "min_p": 0.2, "temperature": 0.7}, {"top_k": NUM_CANDIDATES, "top_p": 0.999,
        "temperature": 2.0},
])  # fmt: skip
def test_however_many_tokens_may_come_they_are_those_of_a_whole_sort_and_drawn_as_from_all(given, flat):
    torch.manual_seed(4)
    logits = flat * torch.randn(6, 20 * NUM_CANDIDATES)
    logits[::2] = (4 * logits[::2]).round() / 4  # hundreds are equal
    logits[3, 0] = -INF
    logits[1, : 19 * NUM_CANDIDATES], logits[3, 1:] = -INF, 1.0
    sampling = Sampling(**given)
    allowed = sampling.apply(logits, [])
    wanted = [
        plainly(row, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        for row in logits.tolist()
    ]
    assert kept(allowed) == wanted
    for number in (0.0, 0.2, 0.7, 1 - 2**-53):
        assert sampling.sample(logits, [], [number] * 6) == sample_inverse_cdf(allowed, [number] * 6)


def processed(ids, logits, given):
    """What Hugging Face's processors make of logits, in the order of ``generate``."""
    t = transformers
    chain = [
        t.RepetitionPenaltyLogitsProcessor(given["repetition_penalty"]),
        *([t.NoRepeatNGramLogitsProcessor(n)] if (n := given["no_repeat_ngram_size"]) else []),
        t.TemperatureLogitsWarper(given["temperature"]),
        t.TopKLogitsWarper(given["top_k"]),
        t.TopPLogitsWarper(given["top_p"]),
        t.MinPLogitsWarper(given["min_p"]),
    ]
    for step in chain:
        logits = step(ids, logits)
    return logits


@pytest.mark.parametrize("seed", range(5))
def test_all_steps_together_equal_hugging_face(seed):
    torch.manual_seed(seed)
    logits, ids = 3 * torch.randn(30, 50), torch.randint(6, (30, 9))
    for k, p, least, t, penalty, n in itertools.product(
        (3, 20), (0.4, 0.95), (0.01, 0.2), (0.5, 1.7), (0.8, 1.3), (0, 1, 2, 3)
    ):
        given = {"top_k": k, "top_p": p, "min_p": least, "temperature": t, "repetition_penalty": penalty}
        given["no_repeat_ngram_size"] = n
        wanted = processed(ids, logits.clone(), given)
        found = Sampling(**given).apply(logits, ids.tolist())
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_plain_sampling_changes_nothing_and_temperature_0_leaves_the_likeliest():
    logits = rows(3)
    assert torch.equal(Sampling().apply(logits, [[]] * 40), logits)
    cold = Sampling(temperature=0.0, top_k=1, top_p=0.1).apply(logits, [[]] * 40)
    assert torch.equal(cold, logits)
    assert not torch.equal(
        Sampling(temperature=0.0, repetition_penalty=5.0).apply(logits, [[0]] * 40), logits
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1, expected 0"),
        ({"temperature": INF}, "temperature is inf"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"repetition_penalty": math.nan}, "repetition_penalty is nan"),
        ({"repetition_penalty": INF}, "repetition_penalty is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0, expected a probability above 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1, expected 1 or more, or 0 for none"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, expected more than 0; 1 disables it"),
    ],
)
def test_impossible_sampling_is_refused(given, message):
    with pytest.raises(UserError, match=message):
        Sampling(**given)


@pytest.mark.acceptance("C9")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-38, 1e-6, 1e-5, 1.0, 1e3, 1e30])
def test_any_temperature_gives_tokens_and_a_tiny_one_the_likeliest(temperature, dtype):
    logits = (1e3 * rows(5)).to(dtype)
    for rest in ({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 2.0}):
        sampling = Sampling(temperature, **rest)
        shaped = sampling.apply(logits, [[1, 2]] * len(logits))
        assert not shaped.isnan().any() and not (shaped == INF).any()
        drawn = (
            shaped.argmax(-1).tolist()
            if sampling.temperature == 0
            else sample_inverse_cdf(shaped, [0.5] * len(logits))
        )
        if temperature <= 1e-5 and "repetition_penalty" not in rest:
            assert logits[range(len(drawn)), drawn].tolist() == logits.amax(-1).tolist()


def test_draws_are_as_frequent_as_their_probabilities():
    """Chi-square of 40,000 draws with a fixed seed: at 7 degrees of freedom 24.3 is passed once in 1,000
    times.
    """
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, -INF, 0.5, 0.5, -3.0, 1.5]])
    chance, n = RandomStreams(7, 1), 40_000
    counts = np.zeros(9)
    for _ in range(n):
        counts[chance.sample(logits, [0])[0]] += 1
    wanted = n * logits[0].double().softmax(-1).numpy()
    assert counts[4] == 0
    seen = wanted > 0
    assert ((counts - wanted)[seen] ** 2 / wanted[seen]).sum() < 24.3


def test_a_row_draws_the_same_in_any_batch_and_other_rows_draw_others():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    together, alone, later = (
        RandomStreams(1, 3),
        [RandomStreams(1, 3) for _ in range(3)],
        RandomStreams(1, 2, row_offset=1),
    )
    for step in range(20):
        live = [row for row in range(3) if step < 5 or row != 1]
        drawn = together.sample(logits[live], live)
        assert drawn == [alone[row].sample(logits[row : row + 1], [row])[0] for row in live]
        if 2 in live:
            at = live.index(2)
            if step < 5:
                assert later.sample(logits[1:], [0, 1]) == drawn[at - 1 :]
    same = torch.zeros(2, 1000)
    drawn = RandomStreams(1, 2).sample(same, [0, 1])
    assert drawn[0] != drawn[1]
    assert RandomStreams(2, 2).sample(same, [0, 1]) != drawn


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_token_of_probability_0_is_never_drawn_whatever_the_number(uniform):
    class Fixed:
        def random(self):
            return uniform

    chance = RandomStreams(0, 1)
    chance.streams = [Fixed()]
    for at in range(6):
        logits = torch.full((1, 6), -INF)
        logits[0, at] = 1.0
        assert chance.sample(logits, [0]) == [at]


V, NEVER = 13, -1


@pytest.mark.parametrize("rule", RULES)
def test_logits_are_changed_by_the_formula(rule):
    torch.manual_seed(0)
    logits, said = 3 * torch.randn(4, V), [[], [3], [3, 3, 4, 3, 12], list(range(V)) * 2]
    logits[2, 3] = logits[3, 0] = -INF
    before = logits.clone()
    found = Sampling(temperature=0.0, **RULES[rule]).apply(logits, [[7, 7, 3]] * 4, (0,), said)
    wanted = [changed(row, tokens, **RULES[rule]) for row, tokens in zip(logits.tolist(), said, strict=True)]
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-6, atol=1e-6)
    assert found[2, 3] == found[3, 0] == -INF  # what cannot come still cannot
    assert torch.equal(logits, before)  # what is given stays as it is
    drawn = Sampling(temperature=0.0, **RULES[rule]).sample(logits, [], [], (0,), said)
    assert drawn == [max(range(V), key=row.__getitem__) for row in wanted]


def test_half_precision_is_left_before_anything_is_added():
    logits = torch.tensor([[10.0, 9.9375]], dtype=torch.bfloat16)
    (row,) = Sampling(temperature=0.0, frequency_penalty=0.01).apply(logits, [], (0,), [[0] * 7]).tolist()
    assert row == pytest.approx([9.93, 9.9375])
