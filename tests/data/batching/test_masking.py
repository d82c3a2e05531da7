from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.batching.batching_helpers import IS_SPECIAL, MASK, V, is_likely

from polyhead.data.batching.masking import choose_tokens, corrupt_tokens, mask_row, row_rng
from polyhead.tokenizers.word_boundaries import WordBoundaries


def make_boundaries(begins, ends=()):
    is_begin, is_end = IS_SPECIAL.copy(), IS_SPECIAL.copy()
    is_begin[begins], is_end[list(ends)] = True, True
    return WordBoundaries(is_begin, is_end, np.zeros(V, bool), True, np.zeros(V, bool), [b""] * V)


@pytest.mark.parametrize("fraction", [0.05, 0.15, 0.4, 1.0])
@pytest.mark.parametrize("n", [1, 3, 127])
def test_fixed_fraction_is_chosen_uniformly(n, fraction):
    is_maskable = np.arange(2 * n) % 2 == 1
    n_chosen = min(n, max(1, round(fraction * n)))
    counts = np.zeros(2 * n, dtype=int)
    for i in range(400):
        chosen = choose_tokens(is_maskable, fraction, row_rng([1, i]))
        assert len(chosen) == n_chosen and (np.diff(chosen) > 0).all()
        counts[chosen] += 1
    assert not counts[::2].any()
    assert len(choose_tokens(~is_maskable & is_maskable, fraction, row_rng([0]))) == 0
    assert all(n_chosen == n or is_likely(count, 400, n_chosen / n) for count in counts[1::2])


def test_corruption_is_80_10_10():
    """A random token may happen to be the right one (1 of 55)."""
    ids = np.tile(np.arange(5, V), 800)[:40000]
    inputs = corrupt_tokens(ids, np.arange(len(ids)), MASK, np.arange(5, V), row_rng([2]))
    n_masked, n_same = int((inputs == MASK).sum()), int((inputs == ids).sum())
    n_random = len(ids) - n_masked - n_same
    for count, p in ((n_masked, 0.8), (n_same, 0.1 + 0.1 / 55), (n_random, 0.1 * 54 / 55)):
        assert is_likely(count, len(ids), p)
    counts = Counter(inputs[(inputs != MASK) & (inputs != ids)].tolist())
    assert set(counts) == set(range(5, V))
    assert all(is_likely(count, n_random, 1 / 55) for count in counts.values())


@given(st.integers(1, 60), st.sampled_from([0.1, 0.15, 0.5]), st.booleans(), st.integers(0, 10**6))
def test_labels_are_the_masked_tokens(n, fraction, whole_words, seed):
    ids = np.random.default_rng(seed).integers(0, V, n)
    original, boundaries = ids.copy(), make_boundaries(list(range(5, 30))) if whole_words else None
    inputs, labels = mask_row(ids, IS_SPECIAL, MASK, fraction, boundaries, row_rng([seed]))
    assert (ids == original).all()
    is_label = labels != -100
    assert (labels[is_label] == ids[is_label]).all() and (inputs[~is_label] == ids[~is_label]).all()
    assert not IS_SPECIAL[ids[is_label]].any()
    n_maskable = int((~IS_SPECIAL[ids]).sum())
    if whole_words:
        assert is_label.sum() >= min(n_maskable, 1)
    else:
        assert is_label.sum() == min(n_maskable, max(1, round(fraction * n_maskable)))
    repeats = mask_row(ids, IS_SPECIAL, MASK, fraction, boundaries, row_rng([seed]))
    assert (repeats[0] == inputs).all() and (repeats[1] == labels).all()


def group_words(ids, begins, ends):
    words = []
    for i, token in enumerate(ids):
        if token < 5:
            continue
        if i == 0 or ids[i - 1] < 5 or token in begins or ids[i - 1] in ends:
            words.append([])
        words[-1].append(i)
    return words


@given(st.lists(st.integers(3, 40), min_size=1, max_size=60), st.floats(0.05, 0.5), st.integers(0, 10**6))
def test_words_are_masked_completely(ids, fraction, seed):
    boundaries = make_boundaries(list(range(5, 20)), [7, 35])
    _, labels = mask_row(np.array(ids), IS_SPECIAL, MASK, fraction, boundaries, row_rng([seed]))
    chosen, words = set(np.flatnonzero(labels != -100).tolist()), group_words(ids, set(range(5, 20)), {7, 35})
    assert all(set(word) <= chosen or not chosen & set(word) for word in words)
    assert chosen <= {i for word in words for i in word}
    n = sum(map(len, words))
    budget = min(n, max(1, round(fraction * n)))
    # words that were not chosen are too long for the rest of the budget, unless one word exceeds all of it
    assert len(chosen) <= budget or sum(bool(chosen & set(word)) for word in words) == 1
    assert all(len(chosen) + len(word) > budget for word in words if not chosen & set(word))


def test_words_of_one_token_are_chosen_uniformly():
    ids, counts = np.arange(5, 45), np.zeros(40, dtype=int)
    boundaries = make_boundaries(list(range(5, V)))
    for i in range(1000):
        _, labels = mask_row(ids, IS_SPECIAL, MASK, 0.15, boundaries, row_rng([5, i]))
        assert (labels != -100).sum() == 6
        counts += labels != -100
    assert all(is_likely(int(count), 1000, 0.15) for count in counts)
