"""What a position scheme is."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.registry import POSITION


@POSITION.register("none")
class Position(nn.Module):
    """No positions: attention then treats its input as a set. Each scheme overrides one of the three methods."""

    def __init__(self, d_model: int, n_heads: int, head_dim: int, max_len: int) -> None:
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """Added to the embeddings (sinusoidal, learned): (B, T, C), (B, T) -> (B, T, C)."""
        return x

    def rotate(self, x: Tensor, pos: Tensor | None) -> Tensor:
        """Turns queries and keys (rope): (B, H, T, D), (B, T) -> (B, H, T, D)."""
        return x

    def bias(self, q_pos: Tensor | None, k_pos: Tensor | None) -> Tensor | None:
        """Added to the scores (alibi, relative): (B, T), (B, 1|K, S) -> (B, H, T, S)."""
        return None
