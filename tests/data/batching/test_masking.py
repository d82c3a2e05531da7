"""How many tokens are hidden, which, and by what: counted over many draws beside the shares of the paper."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.data.batching.masking import choose_tokens, choose_words, corrupt_tokens, mask_row, row_rng
from polyhead.tokenizers.word_boundaries import WordBoundaries

V, MASK = 60, 4
SPECIAL = np.arange(V) < 5


def words(begins: list[int], ends: list[int] = ()) -> WordBoundaries:  # type: ignore[assignment]
    """Special tokens, and those ids, begin and end words."""
    a, b = SPECIAL.copy(), SPECIAL.copy()
    a[begins], b[list(ends)] = True, True
    return WordBoundaries(a, b, np.zeros(V, bool), True, np.zeros(V, bool), [b""] * V)


def near(count: int, n: int, p: float) -> bool:
    """Whether a count of n coins with that chance is within 4.5 standard deviations: one test in 10^5 fails
    by chance.
    """
    return abs(count - n * p) < 4.5 * math.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("share", [0.05, 0.15, 0.4, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 20, 127])
def test_a_fixed_share_is_asked_for_and_every_place_alike(n: int, share: float) -> None:
    askable = np.arange(2 * n) % 2 == 1
    wanted = min(n, max(1, round(share * n)))
    counts = np.zeros(2 * n, dtype=int)
    for i in range(400):
        asked = choose_tokens(askable, share, row_rng([1, i]))
        assert len(asked) == wanted and (np.diff(asked) > 0).all()
        counts[asked] += 1
    assert not counts[::2].any()
    assert all(wanted == n or near(count, 400, wanted / n) for count in counts[1::2])


def test_nothing_to_ask_for_is_nothing_asked() -> None:
    none = np.zeros(4, bool)
    assert (
        len(choose_tokens(none, 0.15, row_rng([0]))) == len(choose_words(none, none, 0.15, row_rng([0]))) == 0
    )


def test_eighty_ten_ten() -> None:
    """Of 40,000 tokens asked for; a random token may happen to be the right one (1 of 55)."""
    ids = np.tile(np.arange(5, V), 800)[:40000]
    asked = np.arange(len(ids))
    hidden = corrupt_tokens(ids, asked, MASK, np.arange(5, V), row_rng([2]))
    masks, kept = int((hidden == MASK).sum()), int((hidden == ids).sum())
    other = len(ids) - masks - kept
    assert near(masks, len(ids), 0.8)
    assert near(kept, len(ids), 0.1 + 0.1 / 55)
    assert near(other, len(ids), 0.1 * 54 / 55)
    seen = Counter(hidden[(hidden != MASK) & (hidden != ids)].tolist())
    assert set(seen) == set(range(5, V)) and all(near(count, other, 1 / 55) for count in seen.values())


@given(st.integers(1, 60), st.sampled_from([0.1, 0.15, 0.5]), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_labels_stand_where_is_asked_and_nowhere_else(n: int, share: float, whole: bool, seed: int) -> None:
    bits = np.random.default_rng(seed)
    ids = bits.integers(0, V, n)
    before = ids.copy()
    read, labels = mask_row(
        ids, SPECIAL, MASK, share, words(list(range(5, 30))) if whole else None, row_rng([seed])
    )
    assert (ids == before).all()
    asked = labels != -100
    assert (labels[asked] == ids[asked]).all() and (read[~asked] == ids[~asked]).all()
    assert not SPECIAL[ids[asked]].any() and not SPECIAL[read[asked & (read != MASK)]].any()
    askable = int((~SPECIAL[ids]).sum())
    wanted = min(askable, max(1, round(share * askable)))
    assert asked.sum() == wanted if not whole else asked.sum() >= min(askable, 1)
    again = mask_row(ids, SPECIAL, MASK, share, words(list(range(5, 30))) if whole else None, row_rng([seed]))
    assert (again[0] == read).all() and (again[1] == labels).all()


def groups(ids: list[int], heads: set[int], stops: set[int]) -> list[list[int]]:
    """The places of each word, by a plain loop."""
    found: list[list[int]] = []
    for i, token in enumerate(ids):
        if token < 5:
            continue
        new = i == 0 or ids[i - 1] < 5 or token in heads or ids[i - 1] in stops
        if new:
            found.append([])
        found[-1].append(i)
    return found


@given(st.lists(st.integers(3, 40), min_size=1, max_size=60), st.floats(0.05, 0.5), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_words_are_asked_for_whole(ids: list[int], share: float, seed: int) -> None:
    row = np.array(ids)
    _, labels = mask_row(row, SPECIAL, MASK, share, words(list(range(5, 20)), [7, 35]), row_rng([seed]))
    asked = set(np.flatnonzero(labels != -100).tolist())
    of_words = groups(ids, set(range(5, 20)), {7, 35})
    assert all(set(word) <= asked or not asked & set(word) for word in of_words)
    assert asked <= {place for word in of_words for place in word}
    n = sum(map(len, of_words))
    wanted = min(n, max(1, round(share * n)))
    left = [len(word) for word in of_words if not asked & set(word)]
    # every word that was passed over was too long for what was left, unless one alone is more than was wanted
    assert len(asked) <= wanted or sum(bool(asked & set(word)) for word in of_words) == 1
    assert all(len(asked) + size > wanted for size in left)


def test_what_is_not_askable_parts_words() -> None:
    """Two tokens, one that may not be asked for, two more: never three places, and either pair."""
    askable, begins = np.array([1, 1, 0, 1, 1], bool), np.array([1, 0, 0, 0, 0], bool)
    seen = {tuple(choose_words(askable, begins, 0.5, row_rng([i])).tolist()) for i in range(50)}
    assert seen == {(0, 1), (3, 4)}


def test_words_of_one_token_are_asked_for_as_tokens_are() -> None:
    """A word of one token each: the number is exact, and every place alike."""
    ids = np.arange(5, 45)
    counts = np.zeros(40, dtype=int)
    for i in range(1000):
        _, labels = mask_row(ids, SPECIAL, MASK, 0.15, words(list(range(5, V))), row_rng([5, i]))
        assert (labels != -100).sum() == 6
        counts += labels != -100
    assert all(near(int(count), 1000, 0.15) for count in counts)


def test_a_row_draws_by_its_key_alone() -> None:
    ids = np.arange(5, 45)
    rows = [mask_row(ids, SPECIAL, MASK, 0.15, None, row_rng([1, 2, row]))[1] for row in (0, 1, 0)]
    assert (rows[0] == rows[2]).all() and (rows[0] != rows[1]).any()
