import math
from itertools import pairwise

import numpy as np
import pytest

from polyhead.tokenizers import train_tokenizer as unigram

SCORES = {"a": -3.0, "b": -3.5, "c": -4.0, "ab": -4.2, "bc": -5.0, "abc": -6.0}


def segmentations(word):
    for cuts in range(2 ** (len(word) - 1)):
        marks = [0, *(i for i in range(1, len(word)) if cuts >> (i - 1) & 1), len(word)]
        yield [word[a:b] for a, b in pairwise(marks)]


def log_prob(pieces):
    return sum(SCORES.get(piece, -math.inf) for piece in pieces)


@pytest.mark.parametrize("piece", ["ab", "abc", "bc"])
def test_score_without_piece_is_best_other_segmentation(piece):
    other_segmentations = [pieces for pieces in segmentations(piece) if pieces != [piece]]
    assert unigram._score_without(piece, SCORES) == pytest.approx(max(map(log_prob, other_segmentations)))
    assert unigram._score_without(piece[0], SCORES) == -math.inf  # a character has no other segmentation


def test_counts_estimates_and_learned_pieces():
    words, expected = {"abc": 5, "abab": 2, "cb": 7}, dict.fromkeys(SCORES, 0)
    for word, n in words.items():
        for piece in max(segmentations(word), key=log_prob):
            expected[piece] += n
    assert dict(unigram._count_pieces(SCORES, list(words), np.array(list(words.values())))) == expected
    counts = unigram._count_pieces(SCORES, ["abc", "cb"], np.array([5, 7]))
    scores = unigram._estimate_scores(counts, SCORES, {"a", "b", "c"})
    assert sum(math.exp(score) for score in scores.values()) == pytest.approx(1.0)
    assert scores["abc"] - scores["b"] == pytest.approx(math.log(counts["abc"] / counts["b"]))
    assert "bc" not in scores  # never used
    assert math.exp(scores["a"] - scores["b"]) == pytest.approx(0.5 / 7)  # never used, but a character
    counts = unigram._count_pieces(SCORES, ["abc", "ab"], np.array([1, 100]))
    assert set(unigram._prune_pieces(SCORES, counts, {"a", "b", "c"}, 4)) == {"a", "b", "c", "ab"}
    words = {"▁the": 500, "▁thing": 60, "▁xyzzy": 2, "▁dog": 80, "▁do": 30}
    pieces = dict(unigram.learn_pieces(words, sorted({*"▁thingdoxyze"}), 16, 16))
    assert len(pieces) <= 16 and {"▁the", "▁dog"} <= set(pieces)
    assert "▁xyzzy" not in pieces
    assert sum(math.exp(score) for score in pieces.values()) == pytest.approx(1.0, abs=1e-9)
    short_pieces = unigram.learn_pieces({"▁abababab": 100, "▁abab": 50}, sorted("▁ab"), 50, 4)
    assert max(len(piece) for piece, _ in short_pieces) <= 4
