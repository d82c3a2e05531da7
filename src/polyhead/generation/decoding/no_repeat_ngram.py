"""Logit processors: no_repeat_ngram_size, banned and forced tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor


def banned_ngrams(text: Sequence[int], n: int) -> list[int]:
    """Next tokens that would repeat an n-gram of a text (Paulus et al., 2017, sec. 2.5); none for n = 0."""
    if n == 0 or len(text) < n:
        return []
    if n == 1:
        return list(text)
    ids = np.array(text)
    contexts, next_ids = sliding_window_view(ids[:-1], n - 1), ids[n - 1 :]
    repeats: list[int] = next_ids[(contexts == ids[1 - n :]).all(1)].tolist()
    return repeats


def force_eos(logits: Tensor, eos_id: int) -> Tensor:
    """(N, V) logits that allow only ``eos_id`` in rows in which every token is banned."""
    is_stuck = logits.isneginf().all(1)
    if not is_stuck.any():
        return logits
    logits = logits.clone()
    logits[is_stuck, eos_id] = 0.0
    return logits


def ban_tokens(logits: Tensor, banned_ids: Sequence[Sequence[int]]) -> Tensor:
    """(N, V) logits with -inf at the banned tokens of each row."""
    positions = [(row, token) for row, tokens in enumerate(banned_ids) for token in tokens]
    if not positions:
        return logits
    rows, columns = torch.tensor(positions, device=logits.device).unbind(1)
    return logits.index_put((rows, columns), logits.new_tensor(float("-inf")))


def force_tokens(logits: Tensor, forced_ids: Sequence[Sequence[int]], unbanned_logits: Tensor) -> Tensor:
    """(N, V) logits with -inf at all but the forced tokens of each row that has any; these are not banned."""
    positions = [(row, token) for row, tokens in enumerate(forced_ids) for token in tokens]
    rows, columns = torch.tensor(positions, device=logits.device).unbind(1)
    logits = logits.index_fill(0, rows.unique(), float("-inf"))
    return logits.index_put((rows, columns), unbanned_logits[rows, columns])
