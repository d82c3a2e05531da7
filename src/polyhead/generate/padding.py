"""Rows of any lengths as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def following(
    rows: Sequence[Sequence[int]], held: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Token ids and positions (B, S) of what comes next in rows that hold so many tokens; -1 at padding."""
    width = max(map(len, rows))
    tokens = [[*row, *[0] * (width - len(row))] for row in rows]
    pos = [[*range(n, n + len(row)), *[-1] * (width - len(row))] for n, row in zip(held, rows, strict=True)]
    return torch.tensor(tokens, device=device), torch.tensor(pos, device=device)


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Token ids and positions (B, S) of rows of any lengths; positions are None where nothing is padded."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)[:, None]
    if min(map(len, rows)) == longest:
        return tokens, None
    pos = torch.arange(longest, device=device).expand(len(rows), -1)
    return tokens, torch.where(pos < lengths, pos, -1)
