"""Pad token rows of different lengths into one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyhead.nn.device import move_tensor
from polyhead.nn.positions import AnyPositions, Positions


def pad_next_inputs(rows: Sequence[Sequence[int]], cached_lens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Token ids and positions (B, S) of the next tokens of rows with so many cached tokens; -1 at padding."""
    width = max(map(len, rows))
    tokens = [[*row, *[0] * (width - len(row))] for row in rows]
    pos = [
        [*range(n, n + len(row)), *[-1] * (width - len(row))]
        for n, row in zip(cached_lens, rows, strict=True)
    ]
    return torch.tensor(tokens), torch.tensor(pos)


def move_inputs(tokens: Tensor, pos: Tensor, device: torch.device) -> tuple[Tensor, AnyPositions]:
    """Token ids and positions of the CPU on the device of a model, which then also has the originals."""
    if device.type == "cpu":
        return tokens, pos
    return move_tensor(tokens, device), Positions(move_tensor(pos, device), pos)


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Token ids and positions (B, S) of rows of different lengths; positions are None without padding."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)[:, None]
    if min(map(len, rows)) == longest:
        return tokens, None
    pos = torch.arange(longest, device=device).expand(len(rows), -1)
    return tokens, torch.where(pos < lengths, pos, -1)
