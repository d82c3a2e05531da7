"""Small tasks with an exact answer, made on the fly from a seed: nothing to download, nothing to remember by heart.

Shapes: B rows, S source tokens, T target tokens. A batch is a pure function of (seed, number).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from polyhead.data.collate import Batch
from polyhead.nn.loss import IGNORED

PAD, START = 0, 1
FIRST = 2  # the first token that means something

Ints = NDArray[np.int64]
Draw = Callable[[np.random.Generator, int], tuple[Ints, Ints, Ints]]
"""(generator, rows) -> source (B, S), what the decoder reads (B, T), what it must say (B, T)."""


class Problem(NamedTuple):
    """A task: its words, its greatest length, and how rows of it are drawn."""

    vocab_size: int
    max_len: int
    draw: Draw
    rows: int = 64  # of a batch

    def batch(self, seed: int, number: int, rows: int | None = None) -> Batch:
        """The batch of that number; the same for every model that is compared."""
        rng = np.random.default_rng([seed, number])
        source, target, labels = (torch.from_numpy(x) for x in self.draw(rng, rows or self.rows))
        return Batch(source, _positions(source), target, labels, int((labels != IGNORED).sum()))


def _positions(source: torch.Tensor) -> torch.Tensor | None:
    """0, 1, ... and -1 at padding; None if there is none."""
    padding = source == PAD
    pos = torch.arange(source.size(1)).expand_as(source)
    return pos.masked_fill(padding, -1) if bool(padding.any()) else None


def shifted(labels: Ints) -> Ints:
    """What the decoder reads when it is to say labels: the start and all of them but the last."""
    target = np.full_like(labels, START)
    target[:, 1:] = np.where(labels[:, :-1] == IGNORED, PAD, labels[:, :-1])
    return target


def copying(length: int = 12, symbols: int = 16, shortest: int | None = None) -> Problem:
    """Say the source again; ``shortest`` makes rows of random length, the rest of them padding."""

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        lengths = rng.integers(shortest or length, length + 1, rows)
        source = np.full((rows, length), PAD)
        labels = np.full((rows, length), IGNORED)
        for row, n in enumerate(lengths):
            source[row, :n] = labels[row, :n] = rng.integers(FIRST, FIRST + symbols, n)
        return source, shifted(labels), labels

    return Problem(FIRST + symbols, length + 1, draw)


def recall(items: int = 16, keys: int = 16, values: int = 8) -> Problem:
    """Every token of the source names a key and a value at once; asked for a key, say its value.

    Keys of a row are distinct. Query number i of the target is a key, its label the value; queries come in an
    order of their own, so that nothing but the key tells which value is meant.
    """
    assert items <= keys, f"{items} distinct keys of {keys}"

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        key = rng.permuted(np.tile(np.arange(keys), (rows, 1)), axis=1)[:, :items]
        value = rng.integers(0, values, (rows, items))
        asked = rng.permuted(np.tile(np.arange(items), (rows, 1)), axis=1)
        first_answer = FIRST + keys * values + keys
        return (
            FIRST + key * values + value,
            FIRST + keys * values + np.take_along_axis(key, asked, 1),
            first_answer + np.take_along_axis(value, asked, 1),
        )

    return Problem(FIRST + keys * values + keys + values, items + 1, draw)


def combining(length: int = 8, symbols: int = 16) -> Problem:
    """Say what a fixed table has for the source's token and the decoder's own at the same place.

    The table is drawn at random once, so nothing but the feed-forward layers can know its symbols^2 entries.
    """
    table = np.random.default_rng(0).integers(0, symbols, (symbols, symbols))

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        a, b = rng.integers(0, symbols, (2, rows, length))
        return FIRST + a, FIRST + b, FIRST + table[a, b]

    return Problem(FIRST + symbols, length + 1, draw)


def delaying(length: int = 24, delay: int = 2, symbols: int = 16) -> Problem:
    """Say again what the decoder itself read ``delay`` tokens before; the source says nothing.

    So all that is needed is to know where one is. The first tokens, with nothing so far before them, are not asked.
    """

    def draw(rng: np.random.Generator, rows: int) -> tuple[Ints, Ints, Ints]:
        read = rng.integers(FIRST, FIRST + symbols, (rows, length))
        labels = np.full((rows, length), IGNORED)
        labels[:, delay:] = read[:, :-delay]
        return np.full((rows, 1), START), read, labels

    return Problem(FIRST + symbols, length, draw)


COPY_AND_RECALL = {"copying": (copying(), 200), "recall": (recall(), 250)}
"""What designs of attention are compared by, and in how many steps it is learned."""
