"""Rows of equal length from a long text: a window for each, as a pure function of (seed, epoch)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.data.arrays import Ints
from polyhead.data.token_store import TokenStore
from polyhead.errors import UserError
from polyhead.nn.loss import IGNORED


class Rows(NamedTuple):
    """A batch of text: each token is asked for the next."""

    tokens: Tensor  # (B, T) int64
    # (B, T) int64: from 0 in each document, -1 at padding; None if the text is one and no row is padded
    pos: Tensor | None
    labels: Tensor  # (B, T) int64: the token after, -100 where none is asked for
    documents: bool = False  # whether a row may hold several; else all that positions tell of is padding


def plan_rows(length: int, width: int, rows: int, *, seed: int, epoch: int) -> list[Ints]:
    """The first tokens of every row of an epoch, ``rows`` to a batch, in random order.

    Rows of ``width`` tokens and the one after lie side by side, from a random place in the first row on, so that
    every epoch cuts the text elsewhere, and no token is seen twice; rows that fill no batch are left to another epoch.
    """
    n = (length - 1) // width
    if n < 2:
        raise UserError(
            f"{length} tokens of text are fewer than two rows of {width}; give more text or a smaller data.max_len"
        )
    bits = np.random.Generator(np.random.PCG64([seed, epoch]))
    starts = np.arange(n - 1) * width + bits.integers(0, width + (length - 1) % width + 1)
    bits.shuffle(starts)
    return [starts[i : i + rows] for i in range(0, len(starts) - len(starts) % rows or len(starts), rows)]


def collate_rows(store: TokenStore, starts: Ints, width: int, *, documents: bool) -> Rows:
    """The rows that begin at those places; with ``documents`` positions begin again at 0 with each of them."""
    at = np.asarray(starts)[:, None] + np.arange(width + 1)
    cells = torch.from_numpy(store.ids[np.minimum(at, len(store) - 1)].astype(np.int64))
    unasked = at[:, 1:] >= len(store)
    if store.apart:
        unasked |= _positions(store.begins, at)[:, 1:].numpy() == 0
    labels = cells[:, 1:].masked_fill(torch.from_numpy(unasked), IGNORED)
    pos = _positions(store.begins, at[:, :-1]) if documents else None
    return Rows(cells[:, :-1], pos, labels, documents)


def _positions(begins: Ints, at: Ints) -> Tensor:
    """How far each place is from the beginning of its document or, where that lies before the row, of the row."""
    first = begins[np.searchsorted(begins, at, side="right") - 1]
    return torch.from_numpy((at - np.maximum(first, at[:, :1])).astype(np.int64))
