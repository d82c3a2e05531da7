import math
from itertools import pairwise

import numpy as np
import pytest

from polyhead.tokenizers.unigram import (
    _count_pieces,
    _estimate_scores,
    _prune_pieces,
    _score_without,
    learn_pieces,
)

SCORES = {"a": -3.0, "b": -3.5, "c": -4.0, "ab": -4.2, "bc": -5.0, "abc": -6.0}


def segmentations(word):
    """All ways to cut a word."""
    for cuts in range(2 ** (len(word) - 1)):
        marks = [0, *(i for i in range(1, len(word)) if cuts >> (i - 1) & 1), len(word)]
        yield [word[a:b] for a, b in pairwise(marks)]


def log_prob(pieces):
    return sum(SCORES.get(piece, -math.inf) for piece in pieces)


@pytest.mark.parametrize("piece", ["ab", "abc", "bc"])
def test_score_without_piece_is_best_other_segmentation(piece):
    other_segmentations = [pieces for pieces in segmentations(piece) if pieces != [piece]]
    assert _score_without(piece, SCORES) == pytest.approx(max(map(log_prob, other_segmentations)))
    assert _score_without(piece[0], SCORES) == -math.inf  # a character has no other segmentation


def test_counts_follow_the_most_probable_segmentations():
    words = {"abc": 5, "abab": 2, "cb": 7}
    expected = dict.fromkeys(SCORES, 0)
    for word, n in words.items():
        for piece in max(segmentations(word), key=log_prob):
            expected[piece] += n
    assert dict(_count_pieces(SCORES, list(words), np.array(list(words.values())))) == expected


def test_estimates_are_relative_frequencies():
    counts = _count_pieces(SCORES, ["abc", "cb"], np.array([5, 7]))
    scores = _estimate_scores(counts, SCORES, {"a", "b", "c"})
    assert sum(math.exp(score) for score in scores.values()) == pytest.approx(1.0)
    assert scores["abc"] - scores["b"] == pytest.approx(math.log(counts["abc"] / counts["b"]))
    assert "bc" not in scores  # never used
    assert math.exp(scores["a"] - scores["b"]) == pytest.approx(0.5 / 7)  # never used, but a character


def test_pruning_keeps_most_useful_pieces():
    counts = _count_pieces(SCORES, ["abc", "ab"], np.array([1, 100]))
    assert set(_prune_pieces(SCORES, counts, {"a", "b", "c"}, 4)) == {"a", "b", "c", "ab"}


def test_frequent_words_become_pieces():
    words = {"▁the": 500, "▁thing": 60, "▁xyzzy": 2, "▁dog": 80, "▁do": 30}
    pieces = dict(learn_pieces(words, sorted({*"▁thingdoxyze"}), 16, 16))
    assert len(pieces) <= 16 and {"▁the", "▁dog"} <= set(pieces)
    assert "▁xyzzy" not in pieces
    assert sum(math.exp(score) for score in pieces.values()) == pytest.approx(1.0, abs=1e-9)
    short_pieces = learn_pieces({"▁abababab": 100, "▁abab": 50}, sorted("▁ab"), 50, 4)
    assert max(len(piece) for piece, _ in short_pieces) <= 4
