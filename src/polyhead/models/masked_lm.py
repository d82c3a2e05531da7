"""The encoder-only Transformer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config import ModelConfig
from polyhead.nn.embedding import Embedding
from polyhead.nn.head import Head
from polyhead.nn.stack import build_stack
from polyhead.registry import NORM, POSITION


class Encoder(nn.Module):
    """Every token sees all of its row, and becomes a vector (Devlin et al., 2018)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        position = POSITION.build(config.position, config.shape(causal=False))
        token = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding = Embedding.of(config, token, position)
        self.stack = build_stack(config, position, config.n_layers, causal=False, cross=False)

    def forward(self, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C). Position -1 marks padding; None means whole rows."""
        out: Tensor = self.stack(self.embedding(tokens, pos), pos)
        return out


class MaskedLM(nn.Module):
    """An encoder that says which tokens stood where some were hidden (Devlin et al., 2018, sec. 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.transform = nn.Linear(config.d_model, config.d_model)
        self.transform_norm = NORM.build(config.norm, config.d_model)
        self.head = Head.of(config, self.encoder.embedding.token)

    def forward(self, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, T, V) of the token at each place itself."""
        logits: Tensor = self.head(self.features(tokens, pos))
        return logits

    def features(self, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """What the head reads: (B, T) -> (B, T, C)."""
        out: Tensor = self.transform_norm(F.gelu(self.transform(self.encoder(tokens, pos))), pos)
        return out
