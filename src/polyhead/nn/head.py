"""From vectors to scores of the vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config import ModelSection
from polyhead.ranges import factor_of


class Head(nn.Module):
    """x Wᵀ + b: how well each token of the vocabulary fits; W may be the embedding itself (Press & Wolf, 2017).

    With ``scale`` it reads scale · x, with ``softcap`` c scores are c tanh(scores / c), which lie between -c and c.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: nn.Parameter | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.register_parameter("bias", bias)
        self.bias: nn.Parameter | None
        self.scale, self.softcap = scale, softcap

    @classmethod
    def of(cls, config: ModelSection, embedding: nn.Embedding) -> Head:
        """Tied to the embedding or with a matrix of its own, as the config says."""
        weight = embedding.weight
        if config.tie_embeddings in ("inputs", "none"):
            weight = nn.Parameter(torch.empty_like(weight))
            nn.init.normal_(weight, std=config.embedding_width**-0.5)
        bias = nn.Parameter(torch.zeros_like(weight[:, 0])) if config.head_bias else None
        scale = 1 / factor_of(config.scale_output, config.embedding_width**0.5)
        return cls(weight, bias, scale, config.logit_softcap)

    def narrowed(self, tokens: Tensor) -> Head:
        """A head for these tokens alone, in their order: (n,) -> (..., C) -> (..., n)."""
        bias = None if self.bias is None else nn.Parameter(self.bias[tokens], requires_grad=False)
        return Head(self.weight[tokens], bias, self.scale, self.softcap)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        return self.bounded(F.linear(self.scaled(x), self.weight, self.bias))

    def scaled(self, x: Tensor) -> Tensor:
        """What is multiplied with the weight."""
        return x if self.scale == 1 else x * self.scale

    def bounded(self, scores: Tensor) -> Tensor:
        """Scores as they are, or below the softcap."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)
