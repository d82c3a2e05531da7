"""Mask tokens of a row for masked language modelling. Pure functions of arrays and a random generator."""

from __future__ import annotations

import numpy as np

from polyhead.core.array_types import Bools
from polyhead.data.stores.arrays import IdArray
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.word_boundaries import WordBoundaries

MASKED, RANDOM = 0.8, 0.1  # of the chosen tokens; the rest is unchanged (Devlin et al., 2018, sec. 3.1)


def row_rng(key: list[int]) -> np.random.Generator:
    """The random generator of a row: equal keys give equal draws."""
    return np.random.Generator(np.random.PCG64(key))


def choose_tokens(is_maskable: Bools, mask_ratio: float, rng: np.random.Generator) -> IdArray:
    """Choose positions to predict: a fixed fraction of the maskable ones, (T,) -> (n,) in ascending order.

    As in the published code of BERT the number is round(mask_ratio * maskable), at least 1, instead of an
    independent draw per token: every row contributes equally.
    """
    places = np.flatnonzero(is_maskable)
    return np.sort(rng.permutation(places)[: _num_masked(len(places), mask_ratio)])


def choose_words(
    is_maskable: Bools, is_word_start: Bools, mask_ratio: float, rng: np.random.Generator
) -> IdArray:
    """Whole-word version of ``choose_tokens``: all tokens of a word are chosen, or none; (T,), (T,) -> (n,).

    Words are visited in random order, and one that would exceed the number of tokens is skipped, as in the
    code of BERT. A position that is not maskable separates words. If even the shortest word is too long, one
    is chosen anyway.
    """
    places = np.flatnonzero(is_maskable)
    num_masked = _num_masked(len(places), mask_ratio)
    if not num_masked:
        return places
    # a word continues while its positions are adjacent
    heads = is_word_start[places] | (np.diff(places, prepend=-2) > 1)
    words = np.split(places, np.flatnonzero(heads)[1:])
    order = rng.permutation(len(words))
    chosen_words: list[IdArray] = []
    room = num_masked
    for number in order:
        if len(words[number]) <= room:
            chosen_words.append(words[number])
            room -= len(words[number])
    return np.sort(np.concatenate(chosen_words or [words[order[0]]]))


def corrupt_tokens(
    ids: IdArray, positions: IdArray, mask_id: int, replacement_ids: IdArray, rng: np.random.Generator
) -> IdArray:
    """Mask 80 % of the chosen tokens, replace 10 % by random ordinary tokens, keep 10 %; returns a copy."""
    corrupted = ids.copy()
    kind = rng.random(len(positions))
    random_ids = replacement_ids[(rng.random(len(positions)) * len(replacement_ids)).astype(np.int64)]
    corrupted[positions] = np.where(
        kind < MASKED, mask_id, np.where(kind < MASKED + RANDOM, random_ids, ids[positions])
    )
    return corrupted


def mask_row(
    ids: IdArray,
    is_special: Bools,
    mask_id: int,
    mask_ratio: float,
    words: WordBoundaries | None,
    rng: np.random.Generator,
) -> tuple[IdArray, IdArray]:
    """(corrupted tokens (T,), labels (T,)): labels are the chosen tokens, -100 elsewhere.

    ``is_special`` (V,) marks tokens that are never chosen and never used as replacements. With ``words``,
    whole words are masked.
    """
    is_maskable = ~is_special[ids]
    if words is None:
        positions = choose_tokens(is_maskable, mask_ratio, rng)
    else:
        positions = choose_words(is_maskable, words.find_word_starts(ids), mask_ratio, rng)
    labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int64)
    labels[positions] = ids[positions]
    return corrupt_tokens(ids, positions, mask_id, np.flatnonzero(~is_special), rng), labels


def _num_masked(n: int, mask_ratio: float) -> int:
    return min(n, max(1, round(mask_ratio * n)))
