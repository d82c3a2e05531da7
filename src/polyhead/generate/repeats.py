"""Not to say the same again: runs of tokens that may come once only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor


def repeats(text: Sequence[int], n: int) -> list[int]:
    """The tokens with which a text would end in n tokens that it has already (Paulus et al., 2017, sec. 2.5); n = 0: none."""
    if n == 0 or len(text) < n:
        return []
    if n == 1:
        return list(text)
    ids = np.array(text)
    before, after = sliding_window_view(ids[:-1], n - 1), ids[n - 1 :]
    found: list[int] = after[(before == ids[1 - n :]).all(1)].tolist()
    return found


def ended(logits: Tensor, end: int) -> Tensor:
    """(N, V) where the end alone may come in the rows in which no token may."""
    stuck = logits.isneginf().all(1)
    if not stuck.any():
        return logits
    logits = logits.clone()
    logits[stuck, end] = 0.0
    return logits


def barred(logits: Tensor, tokens: Sequence[Sequence[int]]) -> Tensor:
    """(N, V) with -inf at the tokens that each row must not say."""
    places = [(row, token) for row, those in enumerate(tokens) for token in those]
    if not places:
        return logits
    rows, columns = torch.tensor(places, device=logits.device).unbind(1)
    return logits.index_put((rows, columns), logits.new_tensor(float("-inf")))
