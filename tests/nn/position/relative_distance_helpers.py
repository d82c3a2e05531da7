"""Shared by the tests of relative_distance."""

import torch

from polyhead.config.model import AttentionShape
from polyhead.core.registry import POSITION

RAGGED = torch.tensor([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1], [0, 1, 2, 3, -1]])

HOLES = torch.tensor([[0, 1, 2, 3, 4], [-1, 7, 0, -1, 1], [60, -1, 3, 2, 0]])

LATER = torch.tensor([[10, 11, 12, 13, 14], [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])

# of queries (B, T) and of slots (B, 1|K, S)
PLACES = {
    "whole rows": (None, None),
    "padded rows": (RAGGED, RAGGED[:, None]),
    "holes": (HOLES, HOLES[:, None]),
    "rows from elsewhere": (LATER, LATER.flip(0)[:, None]),
    "one token more": (torch.tensor([[4], [2], [61]]), HOLES[:, None]),
    "the same token more": (torch.tensor([[5], [5], [5]]), RAGGED[:, None]),
    "a head's own slots": (HOLES, torch.stack([HOLES, RAGGED.roll(1, 0)], 1)),
}


def scheme(name, n_heads=4, causal=False, **options):
    torch.manual_seed(0)
    shape = AttentionShape.from_sizes(
        3 * n_heads, n_heads, n_heads // 2, head_dim=3, v_head_dim=2, causal=causal
    )
    made = POSITION.get(name)(shape, **options).double()
    for p in made.parameters():
        p.data.normal_()
    return made
