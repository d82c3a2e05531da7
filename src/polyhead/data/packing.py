"""Texts of any length in rows of equal width, several in a row where they fit, none cut that need not be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyhead.data.arrays import Ints
from polyhead.data.token_store import TokenStore
from polyhead.text.tokenizer import Tokenizer

FRAME = 2  # special tokens about a piece: one begins it, one ends it


class Pieces(NamedTuple):
    """Parts of a tokenized text: documents, or what they were cut into where they are too long."""

    starts: Ints  # (N,) in the store
    lengths: Ints  # (N,)

    def of(self, chosen: Ints) -> Pieces:
        """Some of them."""
        return Pieces(self.starts[chosen], self.lengths[chosen])


class Pack(NamedTuple):
    """Some rows of an epoch: their pieces, and which row each is in."""

    epoch: int
    rows: Ints  # (B,) numbers of the rows in the epoch
    pieces: Pieces  # those of the first row, then those of the second
    row: Ints  # (N,) from 0 to B - 1

    def deal(self, n: int) -> list[Pack]:
        """The rows dealt out to n processes in turn; no part is empty."""
        kept = [self.row % n == i for i in range(min(n, len(self.rows)))]
        return [
            Pack(self.epoch, self.rows[i::n], self.pieces.of(mine), self.row[mine] // n)
            for i, mine in enumerate(kept)
        ]


def documents(store: TokenStore, mark: int) -> Pieces:
    """The documents of a store, without the token ``mark`` between them, which no text is made of."""
    marked = len(store) > 0 and int(store.ids[0]) == mark
    starts = store.begins + marked
    ends = np.append(store.begins[1:], len(store) - marked)
    return Pieces(starts, ends - starts)


def cut(whole: Pieces, room: int, bits: np.random.Generator | None) -> Pieces:
    """Documents longer than ``room`` tokens cut into pieces of that length, elsewhere with every draw.

    Without ``bits`` a document is cut from its beginning on. What is left at its ends is a shorter piece; together
    the pieces hold each token once. Empty documents go.
    """
    starts, lengths = whole.starts.astype(np.int64), whole.lengths.astype(np.int64)
    before = np.zeros(len(starts), dtype=np.int64)  # how much of a first piece lies before the document
    if bits is not None and (long := lengths > room).any():
        before[long] = bits.integers(0, room, int(long.sum()))
    counts = -(-(lengths + before) // room)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = number * room - np.repeat(before, counts)
    last = np.minimum(first + room, np.repeat(lengths, counts))
    first = np.maximum(first, 0)
    return Pieces(np.repeat(starts, counts) + first, last - first)


def pack(sizes: Ints, width: int, bits: np.random.Generator) -> list[list[int]]:
    """Pieces of those sizes into rows of ``width``: the longest first, each where the least room is left over.

    Best-fit decreasing (Ding et al., 2024, "Fewer Truncations Improve Language Modeling"). Which of equal pieces comes
    first is drawn, and so is the order of the rows.
    """
    order = np.lexsort((bits.random(len(sizes)), -np.asarray(sizes)))
    rows: list[list[int]] = []
    having: list[list[int]] = [[] for _ in range(width + 1)]  # room -> the rows that have just so much
    rooms = 0  # bit r: some row has room r
    for piece, size in zip(order.tolist(), np.asarray(sizes)[order].tolist(), strict=True):
        if fitting := rooms >> size:
            room = size + (fitting & -fitting).bit_length() - 1
            row = having[room].pop()
            if not having[room]:
                rooms ^= 1 << room
        else:
            room, row = width, len(rows)
            rows.append([])
        rows[row].append(piece)
        having[room - size].append(row)
        rooms |= 1 << (room - size)
    return [rows[i] for i in bits.permutation(len(rows))]


def plan_packs(pieces: Pieces, width: int, rows: int, epoch: int, bits: np.random.Generator) -> list[Pack]:
    """The batches of an epoch, ``rows`` rows of ``width`` tokens in each, all pieces framed."""
    filled = pack(pieces.lengths + FRAME, width, bits)
    packs = []
    for first in range(0, len(filled), rows):
        group = filled[first : first + rows]
        chosen = np.array([piece for row in group for piece in row], dtype=np.int64)
        of_row = np.repeat(np.arange(len(group)), [len(row) for row in group])
        packs.append(Pack(epoch, np.arange(first, first + len(group)), pieces.of(chosen), of_row))
    return packs


def collate_packs(store: TokenStore, packed: Pack, tokenizer: Tokenizer) -> tuple[Ints, Ints]:
    """Tokens (B, T) and positions (B, T) of some rows: each piece as ``<s> tokens </s>`` and from position 0 on.

    What is left of a row is padding, at position -1. T is the longest row.
    """
    starts, lengths = packed.pieces
    sizes = lengths + FRAME
    before = np.cumsum(sizes) - sizes
    at = before - before[np.searchsorted(packed.row, packed.row)]  # where each piece begins in its row
    width = int((at + sizes).max(initial=0))
    tokens = np.full((len(packed.rows), width), tokenizer.pad_id, dtype=np.int64)
    pos = np.full_like(tokens, -1)
    for row, first, start, length in zip(
        packed.row.tolist(), at.tolist(), starts.tolist(), lengths.tolist(), strict=True
    ):
        tokens[row, first] = tokenizer.bos_id
        tokens[row, first + 1 : first + 1 + length] = store.ids[start : start + length]
        tokens[row, first + 1 + length] = tokenizer.eos_id
        pos[row, first : first + length + FRAME] = np.arange(length + FRAME)
    return tokens, pos
