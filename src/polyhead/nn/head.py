"""From vectors to scores of the vocabulary."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Head(nn.Module):
    """x W^T: how well each token of the vocabulary fits; W may be the embedding itself (Press & Wolf, 2017)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        return F.linear(x, self.weight)
