"""Learns the pieces of a unigram language model, with the same result on every run.

The library's own trainer sums floats in the order of a randomly seeded hash map, so that no two runs agree. Here
the counts are whole numbers, found by the library's own segmentation, and every tie has a rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import models, trainers

SEED_FACTOR = 4  # the first vocabulary is so many times larger than the wanted one
KEEP = 0.7  # of the pieces, in each round of pruning
ROUNDS = 2  # of estimation between two prunings, as in the paper's implementation

Scores = dict[str, float]


def learn_pieces(
    words: Mapping[str, int], alphabet: Sequence[str], size: int, max_length: int
) -> list[tuple[str, float]]:
    """At most ``size`` pieces with log-probabilities, the alphabet among them (Kudo, 2018, section 3.2).

    Frequent substrings come first (found by merging pairs); then the pieces are estimated on the most probable
    segmentations and those whose loss costs the least likelihood are dropped, until ``size`` are left.
    """
    ranked = sorted(words, key=lambda word: (-words[word], word))
    counts = np.array([words[word] for word in ranked], dtype=np.int64)
    needed = set(alphabet)
    scores = _seed(words, ranked, alphabet, size, max_length)
    while True:
        for _ in range(ROUNDS):
            frequency = _count(scores, ranked, counts)
            scores = _estimate(frequency, scores, needed)
        if len(scores) <= size:
            break
        scores = _prune(scores, frequency, needed, max(size, int(KEEP * len(scores))))
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _seed(
    words: Mapping[str, int], ranked: Sequence[str], alphabet: Sequence[str], size: int, max_length: int
) -> Scores:
    """Substrings worth considering, by how often pair merging makes them."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.train_from_iterator(
        (word for word in ranked for _ in range(min(words[word], 50))),
        trainers.BpeTrainer(
            vocab_size=SEED_FACTOR * size,
            min_frequency=2,
            max_token_length=max_length,
            initial_alphabet=list(alphabet),
            show_progress=False,
        ),
    )
    learnt = bpe.get_vocab()
    known = set(alphabet)
    pieces = sorted((p for p in learnt if known.issuperset(p)), key=lambda piece: learnt[piece])
    # By Zipf's law the score falls with the logarithm of the rank.
    return {
        piece: -math.log(rank + 1.0) for rank, piece in enumerate([*pieces, *sorted(known - set(pieces))])
    }


def _count(scores: Scores, ranked: Sequence[str], counts: np.ndarray) -> Counter[str]:
    """How often each piece occurs in the most probable segmentation of every word."""
    pieces = list(scores)
    model = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *scores.items()], unk_id=0))
    encoded = [e.ids for e in model.encode_batch_fast(list(ranked), add_special_tokens=False)]
    lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
    flat = (
        np.concatenate([np.array(ids, dtype=np.int64) for ids in encoded])
        if encoded
        else np.zeros(0, np.int64)
    )
    totals = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.add.at(totals, flat, np.repeat(counts, lengths))
    return Counter(dict(zip(pieces, totals[1:].tolist(), strict=True)))


def _estimate(frequency: Counter[str], scores: Scores, needed: set[str]) -> Scores:
    """Log-probabilities from counts; a piece never used goes, a character of the alphabet stays at half a count."""
    used = {piece: max(frequency[piece], 0.5) for piece in scores if frequency[piece] > 0 or piece in needed}
    total = math.log(sum(used.values()))
    return {piece: math.log(count) - total for piece, count in used.items()}


def _prune(scores: Scores, frequency: Counter[str], needed: set[str], size: int) -> Scores:
    """Keep the alphabet and the pieces whose absence would cost the most likelihood."""
    cost = {
        piece: frequency[piece] * (score - _without(piece, scores))
        for piece, score in scores.items()
        if piece not in needed
    }
    ranked = sorted(cost, key=lambda piece: (-cost[piece], piece))
    kept = needed | set(ranked[: max(0, size - len(needed))])
    return {piece: score for piece, score in scores.items() if piece in kept}


def _without(piece: str, scores: Scores) -> float:
    """The log-probability of the best way to write a piece without itself."""
    best = [0.0] + [-math.inf] * len(piece)
    for end in range(1, len(piece) + 1):
        for start in range(end):
            if end - start < len(piece) and (part := scores.get(piece[start:end])) is not None:
                best[end] = max(best[end], best[start] + part)
    return best[-1]
