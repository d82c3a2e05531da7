"""Rows of any lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Token ids and positions (B, S) of rows of any lengths; positions are None where nothing is padded."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)[:, None]
    if min(map(len, rows)) == longest:
        return tokens, None
    pos = torch.arange(longest, device=device).expand(len(rows), -1)
    return tokens, torch.where(pos < lengths, pos, -1)
