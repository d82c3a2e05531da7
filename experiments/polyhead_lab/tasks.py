"""Small synthetic tasks with an exact answer, generated from a seed: no downloads, no memorised corpus.

Shapes: B rows, S source tokens, T target tokens. A batch is a pure function of (seed, number).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from polyhead.core.array_types import Ints
from polyhead.data.batching.collate import PairBatch
from polyhead.nn.loss import IGNORE_INDEX

PAD, START = 0, 1
FIRST_SYMBOL = 2  # first token id that is not a special token

DrawRows = Callable[[np.random.Generator, int], tuple[Ints, Ints, Ints]]
"""(generator, rows) -> source (B, S), decoder input (B, T), labels (B, T)."""


class SyntheticTask(NamedTuple):
    """A synthetic task: its vocabulary size, its maximum length, and how its rows are drawn."""

    vocab_size: int
    max_len: int
    draw: DrawRows
    rows: int = 64  # rows of a batch

    def batch(self, seed: int, number: int, rows: int | None = None) -> PairBatch:
        """The batch with this number; the same for every model that is compared."""
        rng = np.random.default_rng([seed, number])
        source, target, labels = (torch.from_numpy(x) for x in self.draw(rng, rows or self.rows))
        return PairBatch(source, _positions(source), target, labels, int((labels != IGNORE_INDEX).sum()))


def _positions(source: torch.Tensor) -> torch.Tensor | None:
    """Positions 0, 1, ... and -1 at padding; None if there is no padding."""
    padding = source == PAD
    pos = torch.arange(source.size(1)).expand_as(source)
    return pos.masked_fill(padding, -1) if bool(padding.any()) else None


def shift_right(labels: Ints) -> Ints:
    """Decoder input for given labels: the start token and all labels but the last."""
    target = np.full_like(labels, START)
    target[:, 1:] = np.where(labels[:, :-1] == IGNORE_INDEX, PAD, labels[:, :-1])
    return target


def make_copy_task(length: int = 12, symbols: int = 16, shortest: int | None = None) -> SyntheticTask:
    """Copy the source; with ``shortest`` rows have random lengths and the rest is padding."""

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        lengths = rng.integers(shortest or length, length + 1, rows)
        source = np.full((rows, length), PAD)
        labels = np.full((rows, length), IGNORE_INDEX)
        for row, n in enumerate(lengths):
            source[row, :n] = labels[row, :n] = rng.integers(FIRST_SYMBOL, FIRST_SYMBOL + symbols, n)
        return source, shift_right(labels), labels

    return SyntheticTask(FIRST_SYMBOL + symbols, length + 1, draw)


def make_recall_task(items: int = 16, keys: int = 16, values: int = 8) -> SyntheticTask:
    """Associative recall: a source token is a key and a value; given a key, predict its value.

    Keys of a row are distinct. Query number i of the target is a key, its label the value. Queries have an
    order that is independent of the source, so that only the key identifies the value.
    """
    assert items <= keys, f"{items} distinct keys of {keys}"

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        key = rng.permuted(np.tile(np.arange(keys), (rows, 1)), axis=1)[:, :items]
        value = rng.integers(0, values, (rows, items))
        query_items = rng.permuted(np.tile(np.arange(items), (rows, 1)), axis=1)
        first_answer = FIRST_SYMBOL + keys * values + keys
        return (
            FIRST_SYMBOL + key * values + value,
            FIRST_SYMBOL + keys * values + np.take_along_axis(key, query_items, 1),
            first_answer + np.take_along_axis(value, query_items, 1),
        )

    return SyntheticTask(FIRST_SYMBOL + keys * values + keys + values, items + 1, draw)


def make_lookup_task(length: int = 8, symbols: int = 16) -> SyntheticTask:
    """Predict the entry of a fixed table for the source token and the decoder input at the same position.

    The table is drawn at random once, so only the feed-forward layers can store its symbols^2 entries.
    """
    table = np.random.default_rng(0).integers(0, symbols, (symbols, symbols))

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        a, b = rng.integers(0, symbols, (2, rows, length))
        return FIRST_SYMBOL + a, FIRST_SYMBOL + b, FIRST_SYMBOL + table[a, b]

    return SyntheticTask(FIRST_SYMBOL + symbols, length + 1, draw)


def make_delay_task(length: int = 24, delay: int = 2, symbols: int = 16) -> SyntheticTask:
    """Repeat the decoder's own input from ``delay`` tokens before; the source carries no information.

    Positions are all that is needed. The first ``delay`` tokens have no label.
    """

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        target = rng.integers(FIRST_SYMBOL, FIRST_SYMBOL + symbols, (rows, length))
        labels = np.full((rows, length), IGNORE_INDEX)
        labels[:, delay:] = target[:, :-delay]
        return np.full((rows, 1), START), target, labels

    return SyntheticTask(FIRST_SYMBOL + symbols, length, draw)


def make_latch_task(length: int = 32, values: int = 8) -> SyntheticTask:
    """Output the one marked token of the decoder's own input from its place on (Bengio et al., 1994).

    The marked token is one of ``values`` symbols, at a random place; the others are noise of as many other
    symbols. Tokens before it have no label. The source carries no information.
    """

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        value, place = rng.integers(0, values, rows), rng.integers(0, length, rows)
        target = rng.integers(FIRST_SYMBOL + values, FIRST_SYMBOL + 2 * values, (rows, length))
        target[np.arange(rows), place] = FIRST_SYMBOL + value
        is_label = np.arange(length) >= place[:, None]
        labels = np.where(is_label, FIRST_SYMBOL + value[:, None], IGNORE_INDEX)
        return np.full((rows, 1), START), target, labels

    return SyntheticTask(FIRST_SYMBOL + 2 * values, length, draw)


COPY_AND_RECALL = {"copying": (make_copy_task(), 200), "recall": (make_recall_task(), 250)}
"""Tasks that attention designs are compared on, with their numbers of training steps."""
