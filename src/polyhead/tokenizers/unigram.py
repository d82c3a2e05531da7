"""Learn the pieces of a unigram language model deterministically.

The library's own trainer sums floats in the order of a randomly seeded hash map, so that no two runs agree.
Here counts are integers from the library's own segmentation, and ties are broken by a rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

import tokenizers
from tokenizers import models, trainers

_SEED_FACTOR = 4  # size of the seed vocabulary relative to the final one
_KEEP_FRACTION = 0.7  # share of the pieces that a pruning round keeps
_EM_ROUNDS = 2  # estimation rounds between two prunings, as in the paper's implementation

PieceScores = dict[str, float]


def learn_pieces(
    words: Mapping[str, int], alphabet: Sequence[str], size: int, max_length: int
) -> list[tuple[str, float]]:
    """Learn at most ``size`` pieces with log-probabilities, including the alphabet (Kudo, 2018, section 3.2).

    The seed vocabulary consists of frequent substrings, from merging pairs. Then the probabilities are
    estimated on the most probable segmentations, and the pieces whose loss costs the least likelihood are
    dropped, until ``size`` are left.
    """
    ranked = sorted(words, key=lambda word: (-words[word], word))
    counts = np.array([words[word] for word in ranked], dtype=np.int64)
    required_pieces = set(alphabet)
    scores = _seed_pieces(words, ranked, alphabet, size, max_length)
    while True:
        for _ in range(_EM_ROUNDS):
            frequency = _count_pieces(scores, ranked, counts)
            scores = _estimate_scores(frequency, scores, required_pieces)
        if len(scores) <= size:
            break
        scores = _prune_pieces(
            scores, frequency, required_pieces, max(size, int(_KEEP_FRACTION * len(scores)))
        )
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _seed_pieces(
    words: Mapping[str, int], ranked_words: Sequence[str], alphabet: Sequence[str], size: int, max_length: int
) -> PieceScores:
    """Seed vocabulary: substrings in the order in which pair merging creates them, and the alphabet."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.train_from_iterator(
        (word for word in ranked_words for _ in range(min(words[word], 50))),
        trainers.BpeTrainer(
            vocab_size=_SEED_FACTOR * size,
            min_frequency=2,
            max_token_length=max_length,
            initial_alphabet=list(alphabet),
            show_progress=False,
        ),
    )
    bpe_vocab = bpe.get_vocab()
    characters = set(alphabet)
    pieces = sorted((p for p in bpe_vocab if characters.issuperset(p)), key=lambda piece: bpe_vocab[piece])
    # By Zipf's law the score falls with the logarithm of the rank.
    return {
        piece: -math.log(rank + 1.0)
        for rank, piece in enumerate([*pieces, *sorted(characters - set(pieces))])
    }


def _count_pieces(scores: PieceScores, ranked_words: Sequence[str], counts: np.ndarray) -> Counter[str]:
    """Frequency of each piece in the most probable segmentations of all words."""
    pieces = list(scores)
    model = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *scores.items()], unk_id=0))
    encoded = [e.ids for e in model.encode_batch_fast(list(ranked_words), add_special_tokens=False)]
    lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
    flat = (
        np.concatenate([np.array(ids, dtype=np.int64) for ids in encoded])
        if encoded
        else np.zeros(0, np.int64)
    )
    totals = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.add.at(totals, flat, np.repeat(counts, lengths))
    return Counter(dict(zip(pieces, totals[1:].tolist(), strict=True)))


def _estimate_scores(frequency: Counter[str], scores: PieceScores, required_pieces: set[str]) -> PieceScores:
    """Log-probabilities from counts; unused pieces are dropped, required ones get at least half a count."""
    used_counts = {
        piece: max(frequency[piece], 0.5)
        for piece in scores
        if frequency[piece] > 0 or piece in required_pieces
    }
    total = math.log(sum(used_counts.values()))
    return {piece: math.log(count) - total for piece, count in used_counts.items()}


def _prune_pieces(
    scores: PieceScores, frequency: Counter[str], required_pieces: set[str], size: int
) -> PieceScores:
    """Keep the required pieces and those whose removal would cost the most likelihood, ``size`` in total."""
    cost = {
        piece: frequency[piece] * (score - _score_without(piece, scores))
        for piece, score in scores.items()
        if piece not in required_pieces
    }
    ranked = sorted(cost, key=lambda piece: (-cost[piece], piece))
    kept_pieces = required_pieces | set(ranked[: max(0, size - len(required_pieces))])
    return {piece: score for piece, score in scores.items() if piece in kept_pieces}


def _score_without(piece: str, scores: PieceScores) -> float:
    """Log-probability of the best segmentation of a piece into other pieces."""
    best = [0.0] + [-math.inf] * len(piece)
    for end in range(1, len(piece) + 1):
        for start in range(end):
            if end - start < len(piece) and (part := scores.get(piece[start:end])) is not None:
                best[end] = max(best[end], best[start] + part)
    return best[-1]
