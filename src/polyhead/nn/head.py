"""From vectors to scores of the vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config import ModelSection


class Head(nn.Module):
    """x W^T: how well each token of the vocabulary fits; W may be the embedding itself (Press & Wolf, 2017)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    @classmethod
    def of(cls, config: ModelSection, embedding: nn.Embedding) -> Head:
        """Tied to the embedding or with a matrix of its own, as the config says."""
        if config.tie_embeddings != "none":
            return cls(embedding.weight)
        return cls(nn.Parameter(torch.empty_like(embedding.weight).normal_(std=config.d_model**-0.5)))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        return F.linear(x, self.weight)
