"""A text, or two, as an encoder reads them: between special tokens, padded to one width. Shapes: B rows, T tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.data.arrays import Ints
from polyhead.errors import UserError
from polyhead.text.frame import Around
from polyhead.text.tokenizer import Tokenizer


class Framed(NamedTuple):
    """The tokens of a row, special ones included."""

    ids: list[int]
    second: int  # where the second segment begins; the length of the row if there is one alone
    cut: bool  # whether the end of a text did not fit


class FramedBatch(NamedTuple):
    """What an encoder is called with."""

    tokens: Tensor  # (B, T) int64
    pos: Tensor | None  # (B, T) int64: 0, 1, ... and -1 at padding; None if no row is padded
    segments: Tensor | None  # (B, T) int64: 1 from where the second segment begins; None if no row has one

    def called(self, segments: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The arguments of a model that tells so many kinds of segments apart."""
        return self.tokens, self.pos, self.segments if segments > 1 else None


def framed(texts: Sequence[Sequence[int]], tokenizer: Tokenizer, max_len: int) -> Framed:
    """``<s> text </s>`` or ``<s> text </s> second </s>``, as the tokenizer says, of at most ``max_len`` tokens.

    Of two texts that do not fit the longer one is cut first (Devlin et al., 2018, appendix A.2).
    """
    if not 1 <= len(texts) <= 2:
        raise UserError(f"an encoder reads one text or two together, got {len(texts)}")
    return framed_by(tokenizer.around(len(texts)), texts, max_len)


def framed_texts(texts: Iterable[str | Sequence[str]], tokenizer: Tokenizer, max_len: int) -> list[Framed]:
    """Texts, or pairs of texts, each cut to ``max_len`` tokens."""
    sides = [
        tuple(text) if isinstance(text, Iterable) and not isinstance(text, str) else (text,) for text in texts
    ]
    if len({len(side) for side in sides}) > 1:
        raise UserError("some texts are pairs and some are not: give one or the other")
    encoded = [tokenizer.encode(side) for side in zip(*sides, strict=True)]
    return [framed(ids, tokenizer, max_len) for ids in zip(*encoded, strict=True)]


def framed_by(around: Around, texts: Sequence[Sequence[int]], max_len: int) -> Framed:
    """One text or two with that around them; of two that do not fit the longer one is cut first.

    Where both are cut and the room is odd, the longer one has the token more, as published checkpoints are read.
    """
    before, between, after, apart = around
    special = len(before) + len(between) + len(after)
    room = max_len - special
    if room < len(texts):
        what = "two texts" if len(texts) > 1 else "a text"
        raise UserError(
            f"{max_len} tokens have no room for {what}: with special ones it takes {special + len(texts)} at least"
        )
    kept = [list(ids) for ids in texts]
    if len(kept) == 1:
        kept = [kept[0][:room], []]
    else:
        a, b = kept
        short = min(len(a), len(b), room // 2)
        first = min(len(a), short if len(a) <= len(b) else room - short)
        kept = [a[:first], b[: room - first]]
    ids = [*before, *kept[0], *between, *kept[1], *after]
    second = len(before) + len(kept[0]) + len(between) if apart else len(ids)
    return Framed(ids, second, sum(map(len, kept)) < sum(map(len, texts)))


def collate_framed(
    rows: Sequence[Ints | Sequence[int]], seconds: Ints | Sequence[int], pad_id: int
) -> FramedBatch:
    """The tensors of some rows, padded on the right."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    columns = np.arange(int(lengths.max(initial=0)))
    real = columns < lengths[:, None]
    tokens = np.full(real.shape, pad_id, dtype=np.int64)
    tokens[real] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    after = real & (columns >= np.asarray(seconds)[:, None])
    return FramedBatch(
        torch.from_numpy(tokens),
        None if real.all() else torch.from_numpy(np.where(real, columns, -1)),
        torch.from_numpy(after.astype(np.int64)) if after.any() else None,
    )
