"""Token embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.config import ModelSection
from polyhead.nn.dropout import Dropout
from polyhead.nn.position.base import Position


class Embedding(nn.Module):
    """Tokens to vectors, scaled, with positions and dropout (Vaswani et al., 2017, sec. 3.4)."""

    def __init__(self, token: nn.Embedding, position: Position, scale: float, dropout: float) -> None:
        super().__init__()
        self.token, self.position, self.scale, self.dropout = token, position, scale, Dropout(dropout)

    @classmethod
    def of(cls, config: ModelSection, token: nn.Embedding, position: Position) -> Embedding:
        """As the config says."""
        return cls(token, position, config.d_model**0.5 if config.scale_embedding else 1.0, config.dropout)

    def forward(self, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C)."""
        x: Tensor = self.dropout(self.position.embed(self.token(tokens) * self.scale, pos))
        return x
