import itertools
import math

import numpy as np
import pytest
import torch
from tests.generation.helpers import REFUSALS
from tests.generation.penalties_helpers import PENALTIES, V, penalise

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.decoding.sampling import (
    NUM_CANDIDATES,
    RandomStreams,
    Sampling,
    apply_repetition_penalty,
    ban_tokens,
    banned_ngrams,
    sample_inverse_cdf,
)
from polyhead.generation.settings import with_overrides

transformers = pytest.importorskip("transformers")
INF = float("inf")


def random_logits(seed, n=40, v=13):
    torch.manual_seed(seed)
    x = 2 * torch.randn(n, v)
    x[::2] = x[::2].round()
    return x


def allowed_ids(logits):
    return [[i for i, x in enumerate(row) if x > -INF] for row in logits.tolist()]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_repetition_penalty_and_min_new_tokens(temperature):
    """The penalty divides or multiplies by the sign; in fp32 where logits are of half precision."""
    logits = torch.tensor([[2.0, -2.0, 0.0, 4.0], [1.0, 2.0, 3.0, -4.0]])
    out = apply_repetition_penalty(logits, [[0, 1, 1, 2], []], 2.0)
    assert out.tolist() == [[1.0, -4.0, 0.0, 4.0], [1.0, 2.0, 3.0, -4.0]]
    assert logits[0, 0] == 2.0  # the input is unchanged
    logits, output_ids = torch.zeros(4, 5), [[], [3], [3, 3], [3, 3, 3]]
    out = Sampling(temperature=temperature, min_new_tokens=2).apply(logits, [[3]] * 4, (1, 4), output_ids)
    assert allowed_ids(out) == [[0, 2, 3], [0, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    half = torch.tensor([[10.0, 9.9375]], dtype=torch.bfloat16)
    (row,) = Sampling(temperature=0.0, frequency_penalty=0.01).apply(half, [], (0,), [[0] * 7]).tolist()
    assert row == pytest.approx([9.93, 9.9375])


def truncate_by_sorting(row, t, k, p, min_p):
    order = sorted(range(len(row)), key=lambda i: -row[i])  # of ties the first
    weights = [math.exp((row[i] - row[order[0]]) / t) for i in order]
    if k:
        threshold = row[order[min(k, len(row)) - 1]]
        weights = [w for i, w in zip(order, weights, strict=True) if row[i] >= threshold]
    masses = np.cumsum([0.0, *weights[:-1]]) / math.fsum(weights)
    return sorted(i for i, w, b in zip(order, weights, masses, strict=False) if b < p and w >= min_p and w)


def candidate_logits(spread):
    """Many more logits than candidates, with hundreds of ties and some excluded tokens."""
    torch.manual_seed(4)
    logits = spread * torch.randn(6, 20 * NUM_CANDIDATES)
    logits[::2] = (4 * logits[::2]).round() / 4
    logits[3, 0] = -INF
    logits[1, : 19 * NUM_CANDIDATES], logits[3, 1:] = -INF, 1.0
    return logits


SHARES = [*({"top_k": k} for k in (1, 2, 5, 13, 99)), *({"top_p": p} for p in (1e-9, 0.1, 0.5, 0.9, 0.999))]


@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0, None], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        *SHARES,
        *({"min_p": p} for p in (0.01, 0.02, 0.3, 1.0)),
        {"top_k": 3 * NUM_CANDIDATES},
        {"top_p": 0.01},
        {"top_k": 2 * NUM_CANDIDATES, "top_p": 0.7},
        {"top_p": 0.7, "min_p": 0.2, "temperature": 0.7},
        {"top_k": NUM_CANDIDATES, "top_p": 0.999, "temperature": 2.0},
    ],
    ids=str,
)
def test_truncation_equals_a_full_sort(options, spread):
    logits, s = random_logits(0) if spread is None else candidate_logits(spread), Sampling(**options)
    out = s.apply(logits, [])
    expected = [truncate_by_sorting(row, s.temperature, s.top_k, s.top_p, s.min_p) for row in logits.tolist()]
    assert allowed_ids(out) == expected
    if s.temperature == 1:
        assert torch.equal(out[out > -INF], logits[out > -INF])
    for uniform in (0.0, 0.2, 0.7, 1 - 2**-53):
        uniforms = [uniform] * len(logits)
        assert s.sample(logits, [], uniforms) == sample_inverse_cdf(out, uniforms)


def test_steps_equal_hugging_face_and_none_keeps_logits():
    """In the order of ``generate`` of transformers."""
    t, logits, ids = transformers, 3 * torch.randn(30, 50), torch.randint(6, (30, 9))
    for k, p, min_p, temperature, penalty, n in itertools.product(
        (3, 20), (0.4, 0.95), (0.01, 0.2), (0.5, 1.7), (0.8, 1.3), (0, 1, 2, 3)
    ):
        processors = [t.RepetitionPenaltyLogitsProcessor(penalty)]
        processors += [t.NoRepeatNGramLogitsProcessor(n)] if n else []
        processors += [t.TemperatureLogitsWarper(temperature), t.TopKLogitsWarper(k), t.TopPLogitsWarper(p)]
        expected = logits.clone()
        for processor in [*processors, t.MinPLogitsWarper(min_p)]:
            expected = processor(ids, expected)
        actual = Sampling(temperature, k, p, min_p, penalty, n).apply(logits, ids.tolist())
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    logits = random_logits(3)
    for sampling in (Sampling(), Sampling(temperature=0.0, top_k=1, top_p=0.1)):
        assert torch.equal(sampling.apply(logits, [[]] * 40), logits)
    penalised_logits = Sampling(temperature=0.0, repetition_penalty=5.0).apply(logits, [[0]] * 40)
    assert not torch.equal(penalised_logits, logits)


@pytest.mark.parametrize(("options", "message"), REFUSALS["sampling"])
def test_invalid_settings_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        with_overrides(GenerationConfig(), options, "sampled text")


@pytest.mark.acceptance("C9")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-38, 1e-6, 1e-5, 1.0, 1e3, 1e30])
def test_extreme_temperatures_give_finite_logits(temperature, dtype):
    logits = (1e3 * random_logits(5)).to(dtype)
    for options in ({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 2.0}):
        sampling = Sampling(temperature, **options)
        out = sampling.apply(logits, [[1, 2]] * len(logits))
        assert not out.isnan().any() and not (out == INF).any()
        if sampling.temperature == 0:
            tokens = out.argmax(-1).tolist()
        else:
            tokens = sample_inverse_cdf(out, [0.5] * len(logits))
        if temperature <= 1e-5 and "repetition_penalty" not in options:
            assert logits[range(len(tokens)), tokens].tolist() == logits.amax(-1).tolist()


def test_samples_are_frequent_as_probable_whatever_the_batch():
    """Chi-square of 10,000 samples: at 7 degrees of freedom 24.3 is exceeded once in 1,000 times."""
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, -INF, 0.5, 0.5, -3.0, 1.5]])
    streams, n = RandomStreams(7, 1), 10_000
    counts = np.bincount([streams.sample(logits, [0])[0] for _ in range(n)], minlength=9)
    expected = n * logits[0].double().softmax(-1).numpy()
    assert counts[4] == 0
    possible = expected > 0
    assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < 24.3
    for uniform, token in itertools.product((0.0, 0.5, 1 - 2**-53), (0, 2, 5)):
        logits = torch.full((1, 6), -INF).index_fill(1, torch.tensor(token), 1.0)
        assert sample_inverse_cdf(logits, [uniform]) == [token]
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    batch, single = RandomStreams(1, 3), [RandomStreams(1, 3) for _ in range(3)]
    shifted_streams = RandomStreams(1, 2, row_offset=1)
    for step in range(20):
        live = [row for row in range(3) if step < 5 or row != 1]
        tokens = batch.sample(logits[live], live)
        assert tokens == [single[row].sample(logits[row : row + 1], [row])[0] for row in live]
        if step < 5:
            assert shifted_streams.sample(logits[1:], [0, 1]) == tokens[1:]
    flat = torch.zeros(2, 1000)
    tokens = RandomStreams(1, 2).sample(flat, [0, 1])
    assert tokens[0] != tokens[1] and RandomStreams(2, 2).sample(flat, [0, 1]) != tokens


@pytest.mark.parametrize("name", PENALTIES)
def test_logits_are_changed_by_the_formula(name):
    torch.manual_seed(0)
    logits, output_ids = 3 * torch.randn(4, V), [[], [3], [3, 3, 4, 3, 12], list(range(V)) * 2]
    logits[2, 3] = logits[3, 0] = -INF
    original, sampling = logits.clone(), Sampling(temperature=0.0, **PENALTIES[name])
    actual = sampling.apply(logits, [[7, 7, 3]] * 4, (0,), output_ids)
    rows = zip(logits.tolist(), output_ids, strict=True)
    expected = [penalise(row, tokens, **PENALTIES[name]) for row, tokens in rows]
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-6, atol=1e-6)
    assert actual[2, 3] == actual[3, 0] == -INF  # excluded tokens stay excluded
    assert torch.equal(logits, original)
    tokens = sampling.sample(logits, [], [], (0,), output_ids)
    assert tokens == [max(range(V), key=row.__getitem__) for row in expected]


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
