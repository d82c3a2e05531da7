"""LM head: hidden states to logits of the vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config.model import ModelSpec
from polyhead.core.option_types import resolve_factor
from polyhead.nn.tensor_split import VocabularyShard


class Head(nn.Module):
    """x Wᵀ + b: logits of the vocabulary; W may be the embedding itself (Press & Wolf, 2017).

    With ``scale`` the input is scale · x; with ``softcap`` c the logits are c tanh(logits / c), within (-c,
    c).
    """

    vocabulary: VocabularyShard | None = None
    """The tokens of this rank, if the weight and the bias are split over ranks."""

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
    def from_config(cls, config: ModelSpec, embedding: nn.Embedding) -> Head:
        """Build from a config, tied to the embedding or with its own matrix."""
        weight = embedding.weight
        if config.tie_embeddings in ("inputs", "none"):
            weight = nn.Parameter(torch.empty_like(weight))
            nn.init.normal_(weight, std=config.embedding_width**-0.5)
        bias = nn.Parameter(torch.zeros_like(weight[:, 0])) if config.lm_head_bias else None
        scale = 1 / resolve_factor(config.logits_scale, config.embedding_width**0.5)
        return cls(weight, bias, scale, config.logit_softcap)

    def for_tokens(self, tokens: Tensor) -> Head:
        """A head restricted to these tokens, in their order: tokens (n,) -> head (..., C) -> (..., n)."""
        bias = None if self.bias is None else nn.Parameter(self.bias[tokens], requires_grad=False)
        return Head(self.weight[tokens], bias, self.scale, self.softcap)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        return self.apply_softcap(F.linear(self.scale_input(x), self.weight, self.bias))

    def scale_input(self, x: Tensor) -> Tensor:
        """The scaled input, which is multiplied by the weight."""
        return x if self.scale == 1 else x * self.scale

    def apply_softcap(self, scores: Tensor) -> Tensor:
        """Apply the softcap to the logits, if there is one."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)
