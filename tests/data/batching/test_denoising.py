import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.batching.batching_helpers import MASK, is_likely

from polyhead.data.batching.masking import (
    corrupt_spans,
    even_spans,
    infill_spans,
    permute_sentences,
    poisson_spans,
    row_rng,
    span_counts,
)

FIRST = 1000  # sentinels are 1000, 1001, ...
SENTINELS = np.arange(FIRST, FIRST + 400)


def infill_slowly(ids, spans):
    """Token by token: first the masks of empty spans at a position, then one mask for a span."""
    output, i = [], 0
    remaining = list(zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True))
    while i <= len(ids):
        while remaining and remaining[0][0] == i:
            output.append(MASK)
            i += remaining.pop(0)[1]
        output += ids[i : i + 1]
        i += 1
    assert not remaining
    return output


@given(st.integers(1, 80), st.floats(0.05, 1.0), st.floats(0.5, 6.0), st.integers(0, 10**6))
def test_infilling_masks_the_fraction_in_order(n, fraction, mean, seed):
    ids = np.arange(100, 100 + n)
    spans = poisson_spans(n, fraction, mean, row_rng([seed]))
    n_masked, ends = min(n, math.ceil(fraction * n)), spans.starts + spans.lengths
    assert spans.lengths.sum() == n_masked and (spans.lengths >= 0).all()
    assert 1 <= len(spans.starts) <= n_masked
    assert (spans.starts >= 0).all() and (ends <= n).all() and (spans.starts[1:] >= ends[:-1]).all()
    inputs = infill_spans(ids, spans, MASK)
    assert inputs.tolist() == infill_slowly(ids.tolist(), spans)
    assert len(inputs) == n - n_masked + len(spans.starts) <= n


def test_span_lengths_have_a_poisson_distribution():
    """All but the last, which the budget cuts."""
    counts = Counter()
    for i in range(600):
        counts.update(poisson_spans(500, 0.3, 3.0, row_rng([7, i])).lengths[:-1].tolist())
    total = sum(counts.values())
    assert total > 25_000
    for k in range(8):
        expected = total * math.exp(-3) * 3**k / math.factorial(k)
        # where the budget ends, long spans are cut more often than short ones: an error of less than 1 %
        assert abs(counts[k] - expected) < 5 * math.sqrt(expected) + 0.01 * expected, k


def test_span_positions_are_uniform():
    counts = np.zeros(40)
    for i in range(2500):
        spans = poisson_spans(40, 0.3, 3.0, row_rng([8, i]))
        for start, length in zip(spans.starts, spans.lengths, strict=True):
            counts[start : start + length] += 1
    assert counts.sum() == 2500 * 12
    # except at the ends, which fewer arrangements reach
    assert (abs(counts[8:-8] / 2500 - 0.3) < 0.05).all()
    assert abs(counts - counts[::-1]).max() / 2500 < 0.05


@pytest.mark.parametrize("n", [2, 3, 7, 20, 100, 511])
@pytest.mark.parametrize(("fraction", "mean"), [(0.15, 3.0), (0.5, 3.0), (0.5, 1.0), (0.15, 10.0)])
def test_span_counts_equal_those_of_t5(n, fraction, mean):
    """random_spans_noise_mask of google-research/text-to-text-transfer-transformer, written out."""
    n_noise = min(max(int(np.round(n * fraction)), 1), n - 1)
    n_spans = max(int(np.round(n_noise / mean)), 1)
    assert span_counts(n, fraction, mean) == (n_noise, min(n_spans, n - n_noise))


def restore(source, target):
    """Replace each sentinel of the source by what follows it in the target."""
    spans = {}
    for token in target:
        if token >= FIRST:
            span = spans[token] = []
        else:
            span.append(token)
    return [piece for token in source for piece in (spans[token] if token >= FIRST else [token])]


@given(
    st.integers(1, 200),
    st.sampled_from([0.15, 0.3, 0.5, 0.9]),
    st.sampled_from([1.0, 3.0, 5.0]),
    st.integers(0, 10**6),
)
def test_source_and_target_restore_the_text(n, fraction, mean, seed):
    ids = np.arange(100, 100 + n)
    spans = even_spans(n, fraction, mean, row_rng([seed]))
    n_noise, n_spans = span_counts(n, fraction, mean)
    assert len(spans.starts) == n_spans and spans.lengths.sum() == n_noise and (spans.lengths >= 1).all()
    source, target = (side.tolist() for side in corrupt_spans(ids, spans, SENTINELS))
    assert restore(source, target) == ids.tolist()
    assert [token for token in source if token >= FIRST] == list(range(FIRST, FIRST + n_spans))
    assert [token for token in target if token >= FIRST] == list(range(FIRST, FIRST + n_spans + 1))
    assert target[0] == FIRST and target[-1] == FIRST + n_spans
    if n > 1:
        assert source[0] == 100 and (spans.starts[1:] > spans.starts[:-1] + spans.lengths[:-1]).all()


def test_even_spans_are_uniform():
    """7 masked and 7 other tokens of 14 in 2 spans each: 6 x 6 masks."""
    counts = Counter()
    for i in range(3600):
        spans = even_spans(14, 0.5, 3.5, row_rng([9, i]))
        counts[*spans.starts.tolist(), *spans.lengths.tolist()] += 1
    assert len(counts) == 36
    assert all(is_likely(count, 3600, 1 / 36) for count in counts.values())


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 10**6))
def test_permuted_sentences_are_intact(ends, seed):
    ids = np.arange(len(ends))
    permuted = permute_sentences(ids, np.array(ends), row_rng([seed])).tolist()
    assert sorted(permuted) == ids.tolist()
    is_end = np.array([*ends[:-1], True])
    for a, b in itertools.pairwise(permuted):
        assert b == a + 1 or (is_end[a] and (b == 0 or is_end[b - 1]))


def test_sentence_orders_are_uniform():
    ids, ends = np.arange(3), np.ones(3, bool)
    counts = Counter(tuple(permute_sentences(ids, ends, row_rng([3, i])).tolist()) for i in range(1200))
    assert len(counts) == 6 and all(is_likely(count, 1200, 1 / 6) for count in counts.values())
