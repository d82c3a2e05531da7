"""Hiding some tokens of a row, so that a model must say what stood there. Pure functions of arrays and a generator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyhead.data.arrays import Ints
from polyhead.nn.loss import IGNORED
from polyhead.text.words import Words

Bools = NDArray[np.bool_]
MASKED, RANDOM = 0.8, 0.1  # of the tokens asked for; the rest stays (Devlin et al., 2018, sec. 3.1)


def drawn(key: list[int]) -> np.random.Generator:
    """The generator of a row: the same numbers of the key give the same draws."""
    return np.random.Generator(np.random.PCG64(key))


def choose_tokens(askable: Bools, share: float, bits: np.random.Generator) -> Ints:
    """The places that are asked for: a fixed share of the askable ones, (T,) -> (n,) in ascending order.

    As in the published code of BERT the number is round(share * askable) and 1 at least, not a coin for each token:
    so every row teaches equally much.
    """
    places = np.flatnonzero(askable)
    return np.sort(bits.permutation(places)[: _wanted(len(places), share)])


def choose_words(askable: Bools, begins: Bools, share: float, bits: np.random.Generator) -> Ints:
    """As ``choose_tokens``, but all tokens of a word are asked for or none: (T,), (T,) -> (n,).

    Words come in random order, and one that would exceed the number of tokens is passed over, as in BERT's code. A
    place that is not askable parts words. Where even the shortest word is too long, one is taken anyway.
    """
    places = np.flatnonzero(askable)
    wanted = _wanted(len(places), share)
    if not wanted:
        return places
    # a word goes on while its places are neighbours
    heads = begins[places] | (np.diff(places, prepend=-2) > 1)
    words = np.split(places, np.flatnonzero(heads)[1:])
    order = bits.permutation(len(words))
    taken: list[Ints] = []
    room = wanted
    for number in order:
        if len(words[number]) <= room:
            taken.append(words[number])
            room -= len(words[number])
    return np.sort(np.concatenate(taken or [words[order[0]]]))


def corrupt(ids: Ints, asked: Ints, mask_id: int, ordinary: Ints, bits: np.random.Generator) -> Ints:
    """A copy in which each token asked for is hidden: 80 % by the mask, 10 % by any ordinary token, 10 % not at all."""
    hidden = ids.copy()
    kind = bits.random(len(asked))
    other = ordinary[(bits.random(len(asked)) * len(ordinary)).astype(np.int64)]
    hidden[asked] = np.where(kind < MASKED, mask_id, np.where(kind < MASKED + RANDOM, other, ids[asked]))
    return hidden


def mask_row(
    ids: Ints, special: Bools, mask_id: int, share: float, words: Words | None, bits: np.random.Generator
) -> tuple[Ints, Ints]:
    """What a model reads of a row (T,), and the labels (T,): the tokens asked for, -100 elsewhere.

    ``special`` (V,) tells tokens that are never asked for and never put in; with ``words`` whole words are hidden.
    """
    askable = ~special[ids]
    if words is None:
        asked = choose_tokens(askable, share, bits)
    else:
        asked = choose_words(askable, words.starts(ids), share, bits)
    labels = np.full(len(ids), IGNORED, dtype=np.int64)
    labels[asked] = ids[asked]
    return corrupt(ids, asked, mask_id, np.flatnonzero(~special), bits), labels


def _wanted(n: int, share: float) -> int:
    return min(n, max(1, round(share * n)))
