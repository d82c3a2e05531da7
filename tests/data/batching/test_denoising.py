"""Damage done to texts, undone by plain loops and counted beside the distributions of the papers."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.data.batching.denoising import (
    Spans,
    corrupt_spans,
    even_spans,
    infill_spans,
    permute_sentences,
    poisson_spans,
    span_counts,
)
from polyhead.data.batching.masking import row_rng

MASK, FIRST = 4, 1000  # sentinels are 1000, 1001, ...
SENTINELS = np.arange(FIRST, FIRST + 400)


def near(count: float, n: int, p: float) -> bool:
    return abs(count - n * p) < 4.5 * math.sqrt(n * p * (1 - p)) + 1e-9


def infilled(ids: list[int], spans: Spans) -> list[int]:
    """Token by token: at a place, first the masks of empty spans there, then a span's one mask in place of
    its tokens.
    """
    out, i = [], 0
    todo = list(zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True))
    while i <= len(ids):
        while todo and todo[0][0] == i:
            _, length = todo.pop(0)
            out.append(MASK)
            i += length
        if i < len(ids):
            out.append(ids[i])
        i += 1
    assert not todo
    return out


@given(st.integers(1, 80), st.floats(0.05, 1.0), st.floats(0.5, 6.0), st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_infilling_hides_the_share_and_leaves_the_rest_in_order(
    n: int, share: float, mean: float, seed: int
) -> None:
    ids = np.arange(100, 100 + n)
    spans = poisson_spans(n, share, mean, row_rng([seed]))
    covered = min(n, math.ceil(share * n))
    assert spans.lengths.sum() == covered and (spans.lengths >= 0).all() and 1 <= len(spans.starts) <= covered
    ends = spans.starts + spans.lengths
    assert (spans.starts >= 0).all() and (ends <= n).all() and (spans.starts[1:] >= ends[:-1]).all()
    read = infill_spans(ids, spans, MASK)
    assert read.tolist() == infilled(ids.tolist(), spans)
    assert len(read) == n - covered + len(spans.starts) <= n
    kept = read[read != MASK]
    assert len(kept) == n - covered and (np.diff(kept) > 0).all()


def test_lengths_of_spans_are_poissons() -> None:
    """All but the last, which the budget cuts: beside e^-3 3^k / k!; nearly one in twenty is empty."""
    counts: Counter[int] = Counter()
    for i in range(600):
        counts.update(poisson_spans(500, 0.3, 3.0, row_rng([7, i])).lengths[:-1].tolist())
    total = sum(counts.values())
    assert total > 25_000
    for k in range(8):
        chance = math.exp(-3) * 3**k / math.factorial(k)
        # where the budget ends, long spans are cut more often than short ones: an error of less than 1 %
        assert abs(counts[k] - total * chance) < 5 * math.sqrt(total * chance) + 0.01 * total * chance, k


def test_spans_fall_everywhere_alike() -> None:
    hidden = np.zeros(40)
    for i in range(3000):
        spans = poisson_spans(40, 0.3, 3.0, row_rng([8, i]))
        for start, length in zip(spans.starts, spans.lengths, strict=True):
            hidden[start : start + length] += 1
    assert hidden.sum() == 3000 * 12
    # not quite at the ends, where fewer arrangements reach
    assert all(abs(h / 3000 - 0.3) < 0.05 for h in hidden[8:-8])
    assert abs(hidden - hidden[::-1]).max() / 3000 < 0.05


def test_empty_spans_insert_a_mask() -> None:
    ids = np.arange(100, 104)
    spans = Spans(np.array([0, 0, 2, 4]), np.array([0, 1, 1, 0]))
    assert infill_spans(ids, spans, MASK).tolist() == [MASK, MASK, 101, MASK, 103, MASK]


@pytest.mark.parametrize("n", [2, 3, 7, 20, 100, 511])
@pytest.mark.parametrize(("share", "mean"), [(0.15, 3.0), (0.5, 3.0), (0.5, 1.0), (0.15, 10.0)])
def test_numbers_of_t5_are_those_of_the_papers_code(n: int, share: float, mean: float) -> None:
    """random_spans_noise_mask of google-research/text-to-text-transfer-transformer, written out."""
    noise = min(max(int(np.round(n * share)), 1), n - 1)
    count = max(int(np.round(noise / mean)), 1)
    covered, spans = span_counts(n, share, mean)
    assert covered == noise
    assert spans == min(count, n - noise)


def restored(source: list[int], target: list[int]) -> list[int]:
    """Each sentinel of the source replaced by what follows it in the target."""
    said: dict[int, list[int]] = {}
    for token in target:
        if token >= FIRST:
            said[token] = []
            latest = said[token]
        else:
            latest.append(token)
    return [piece for token in source for piece in (said[token] if token >= FIRST else [token])]


@given(
    st.integers(1, 200),
    st.sampled_from([0.15, 0.3, 0.5, 0.9]),
    st.sampled_from([1.0, 3.0, 5.0]),
    st.integers(0, 10**6),
)
@settings(max_examples=200, deadline=None)
def test_source_and_target_together_are_the_text(n: int, share: float, mean: float, seed: int) -> None:
    ids = np.arange(100, 100 + n)
    spans = even_spans(n, share, mean, row_rng([seed]))
    covered, count = span_counts(n, share, mean)
    assert len(spans.starts) == count and spans.lengths.sum() == covered and (spans.lengths >= 1).all()
    source, target = (side.tolist() for side in corrupt_spans(ids, spans, SENTINELS))
    assert restored(source, target) == ids.tolist()
    assert [token for token in source if token >= FIRST] == list(range(FIRST, FIRST + count))
    assert [token for token in target if token >= FIRST] == list(range(FIRST, FIRST + count + 1))
    assert target[0] == FIRST and target[-1] == FIRST + count
    assert (len(source), len(target)) == (n - covered + count, covered + count + 1)
    if n > 1:
        assert source[0] == 100 and (spans.starts[1:] > spans.starts[:-1] + spans.lengths[:-1]).all()


def test_every_way_of_cutting_is_equally_likely() -> None:
    """7 covered and 7 free tokens of 14 in 2 spans each: 6 x 6 masks."""
    seen: Counter[tuple[int, ...]] = Counter()
    for i in range(7200):
        spans = even_spans(14, 0.5, 3.5, row_rng([9, i]))
        seen[*spans.starts.tolist(), *spans.lengths.tolist()] += 1
    assert len(seen) == 36
    assert all(near(count, 7200, 1 / 36) for count in seen.values())


def test_the_example_of_the_paper() -> None:
    """Raffel et al., 2020, figure 2: "Thank you <X> me to your party <Y> week." and "<X> for inviting <Y>
    last <Z>".
    """
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    spans = Spans(np.array([2, 8]), np.array([2, 1]))
    source, target = corrupt_spans(np.arange(len(words)), spans, SENTINELS)

    def said(ids: np.ndarray) -> str:
        return " ".join("XYZ"[i - FIRST] if i >= FIRST else words[i] for i in ids)

    assert (said(source), said(target)) == (
        "Thank you X me to your party Y week .",
        "X for inviting Y last Z",
    )


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_sentences_move_whole(ends: list[bool], seed: int) -> None:
    ids = np.arange(len(ends))
    moved = permute_sentences(ids, np.array(ends), row_rng([seed])).tolist()
    assert sorted(moved) == ids.tolist()
    whole = np.array([*ends[:-1], True])
    for a, b in itertools.pairwise(moved):
        assert b == a + 1 or (whole[a] and (b == 0 or whole[b - 1]))


def test_sentences_come_in_every_order() -> None:
    seen = Counter(
        tuple(permute_sentences(np.arange(3), np.ones(3, bool), row_rng([3, i])).tolist())
        for i in range(1200)
    )
    assert len(seen) == 6 and all(near(count, 1200, 1 / 6) for count in seen.values())
