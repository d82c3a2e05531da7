"""Token embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.nn.dropout import Dropout
from polyhead.nn.position.base import Position


class Embedding(nn.Module):
    """Tokens to vectors, scaled, with positions and dropout (Vaswani et al., 2017, sec. 3.4)."""

    def __init__(self, token: nn.Embedding, position: Position, scale: float, dropout: float) -> None:
        super().__init__()
        self.token, self.position, self.scale, self.dropout = token, position, scale, Dropout(dropout)

    def forward(self, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C)."""
        x: Tensor = self.dropout(self.position.embed(self.token(tokens) * self.scale, pos))
        return x
