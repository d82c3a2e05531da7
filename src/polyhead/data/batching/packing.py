"""Pack texts into rows of equal width, several per row; only texts longer than a row are cut."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from polyhead.data.stores.build_cache import IdArray
from polyhead.data.stores.token_store import TokenStore
from polyhead.tokenizers.tokenizer import Tokenizer

SPECIAL_PER_SEGMENT = 2  # special tokens of a segment: bos and eos


class Segments(NamedTuple):
    """Segments of a tokenized text: documents, or parts of documents that are too long."""

    starts: IdArray  # (N,) positions in the store
    lengths: IdArray  # (N,)

    def select(self, indices: IdArray) -> Segments:
        """The segments of these indices."""
        return Segments(self.starts[indices], self.lengths[indices])


class PackedRows(NamedTuple):
    """Rows of an epoch: their segments, and the row of each segment."""

    epoch: int
    rows: IdArray  # (B,) row numbers in the epoch
    segments: Segments  # those of the first row, then those of the second, ...
    row_of_segment: IdArray  # (N,) from 0 to B - 1

    def shard(self, n: int) -> list[PackedRows]:
        """Distribute the rows over n processes round-robin; no shard is empty."""
        masks = [self.row_of_segment % n == i for i in range(min(n, len(self.rows)))]
        return [
            PackedRows(
                self.epoch, self.rows[i::n], self.segments.select(mask), self.row_of_segment[mask] // n
            )
            for i, mask in enumerate(masks)
        ]


def split_documents(store: TokenStore, separator_id: int) -> Segments:
    """The documents of a store, without the token ``separator_id`` between them, which occurs in no text."""
    marked = len(store) > 0 and int(store.ids[0]) == separator_id
    starts = store.document_starts + marked
    ends = np.append(store.document_starts[1:], len(store) - marked)
    return Segments(starts, ends - starts)


def split_corpora(store: TokenStore, separator_id: int) -> list[Segments]:
    """The documents of each corpus of a store."""
    documents, bounds = split_documents(store, separator_id), store.corpus_documents
    return [documents.select(np.arange(start, stop)) for start, stop in itertools.pairwise(bounds)]


def cut_segments(documents: Segments, max_len: int, rng: np.random.Generator | None) -> Segments:
    """Cut documents longer than ``max_len`` tokens into segments of that length.

    The offset is random; without ``rng``, a document is cut from its start. The remainders at its ends are
    shorter segments; together the segments contain each token once. Empty documents are dropped.
    """
    starts, lengths = documents.starts.astype(np.int64), documents.lengths.astype(np.int64)
    # tokens of the first segment that would be before the document
    before = np.zeros(len(starts), dtype=np.int64)
    if rng is not None and (long := lengths > max_len).any():
        before[long] = rng.integers(0, max_len, int(long.sum()))
    counts = -(-(lengths + before) // max_len)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = number * max_len - np.repeat(before, counts)
    last = np.minimum(first + max_len, np.repeat(lengths, counts))
    first = np.maximum(first, 0)
    return Segments(np.repeat(starts, counts) + first, last - first)


def count_segments(documents: Segments, max_len: int) -> int:
    """The most segments that ``cut_segments`` gives, at any offset."""
    counts = -(-documents.lengths // max_len) + (documents.lengths > max_len)
    return int(counts.sum())


def pack_segments(sizes: IdArray, width: int, rng: np.random.Generator) -> list[list[int]]:
    """Pack segments of these sizes into rows of ``width`` by best-fit decreasing.

    The longest segment comes first, each goes into the row with the least free space left (Ding et al., 2024,
    "Fewer Truncations Improve Language Modeling"). The order of equal segments and the order of the rows are
    random.
    """
    order = np.lexsort((rng.random(len(sizes)), -np.asarray(sizes)))
    rows: list[list[int]] = []
    # free space -> rows with exactly this much
    rows_by_room: list[list[int]] = [[] for _ in range(width + 1)]
    rooms = 0  # bit r: some row has free space r
    for piece, size in zip(order.tolist(), np.asarray(sizes)[order].tolist(), strict=True):
        if roomy := rooms >> size:
            room = size + (roomy & -roomy).bit_length() - 1
            row = rows_by_room[room].pop()
            if not rows_by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = width, len(rows)
            rows.append([])
        rows[row].append(piece)
        rows_by_room[room - size].append(row)
        rooms |= 1 << (room - size)
    return [rows[i] for i in rng.permutation(len(rows))]


def plan_packed_rows(
    segments: Segments, width: int, batch_rows: int, epoch: int, rng: np.random.Generator
) -> list[PackedRows]:
    """Plan the batches of an epoch: ``batch_rows`` rows of ``width`` tokens, special tokens included."""
    filled = pack_segments(segments.lengths + SPECIAL_PER_SEGMENT, width, rng)
    packs = []
    for first in range(0, len(filled), batch_rows):
        group = filled[first : first + batch_rows]
        segment_ids = np.array([piece for row in group for piece in row], dtype=np.int64)
        of_row = np.repeat(np.arange(len(group)), [len(row) for row in group])
        packs.append(
            PackedRows(epoch, np.arange(first, first + len(group)), segments.select(segment_ids), of_row)
        )
    return packs


def collate_packed_rows(
    store: TokenStore, packed_rows: PackedRows, tokenizer: Tokenizer
) -> tuple[IdArray, IdArray]:
    """(tokens (B, T), positions (B, T)) of packed rows.

    Each segment is ``<s> tokens </s>``, with positions from 0. The rest of a row is padding, at position -1.
    T is the length of the longest row.
    """
    starts, lengths = packed_rows.segments
    sizes = lengths + SPECIAL_PER_SEGMENT
    before = np.cumsum(sizes) - sizes
    # start of each segment in its row
    offsets = before - before[np.searchsorted(packed_rows.row_of_segment, packed_rows.row_of_segment)]
    width = int((offsets + sizes).max(initial=0))
    tokens = np.full((len(packed_rows.rows), width), tokenizer.pad_id, dtype=np.int64)
    pos = np.full_like(tokens, -1)
    for row, first, start, length in zip(
        packed_rows.row_of_segment.tolist(), offsets.tolist(), starts.tolist(), lengths.tolist(), strict=True
    ):
        tokens[row, first] = tokenizer.bos_id
        tokens[row, first + 1 : first + 1 + length] = store.ids[start : start + length]
        tokens[row, first + 1 + length] = tokenizer.eos_id
        pos[row, first : first + length + SPECIAL_PER_SEGMENT] = np.arange(length + SPECIAL_PER_SEGMENT)
    return tokens, pos
