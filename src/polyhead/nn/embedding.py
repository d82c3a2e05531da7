"""Token embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.config.model import ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.option_types import resolve_factor
from polyhead.core.registry import NORM
from polyhead.nn.dropout import Dropout
from polyhead.nn.position.base import Position


class Embedding(nn.Module):
    """Token embeddings, scaled, with positions and dropout (Vaswani et al., 2017, sec. 3.4).

    Optionally with segment embeddings (Devlin et al., 2018, figure 2) and a norm. If the embedding width E
    differs from d_model, a linear map follows: in a decoder on the token embeddings alone (Zhang et al.,
    2022, OPT of 350 M), in an encoder on the result (Lan et al., 2019, sec. 3.1).
    """

    def __init__(
        self,
        token: nn.Embedding,
        position: Position,
        scale: float,
        dropout: float,
        segment: nn.Embedding | None = None,
        norm: nn.Module | None = None,
        token_proj: nn.Linear | None = None,
        proj: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.token, self.position, self.scale, self.dropout = token, position, scale, Dropout(dropout)
        self.token_proj, self.segment, self.norm, self.proj = token_proj, segment, norm, proj

    @classmethod
    def from_config(cls, config: ModelSpec, token: nn.Embedding, position: Position) -> Embedding:
        """Build from a config."""
        width, summed = config.embedding_width, config.position_width
        segment = nn.Embedding(config.n_segments, summed) if config.n_segments else None
        norm = NORM.build(config.norm, summed) if config.embedding_norm else None
        scale = resolve_factor(config.scale_embedding, width**0.5)
        token_proj = proj = None
        if config.d_embedding is not None and config.kind == "decoder":
            token_proj = nn.Linear(width, summed, bias=False)
        elif config.d_embedding is not None:
            proj = nn.Linear(summed, config.d_model)
        return cls(token, position, scale, config.dropout, segment, norm, token_proj, proj)

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C); segments (B, T) count from 0, and None means all 0."""
        x = self.token(tokens) * self.scale
        x = x if self.token_proj is None else self.token_proj(x)
        if self.segment is not None:
            x = x + (self.segment.weight[0] if segments is None else self.segment(segments))
        elif segments is not None:
            raise UserError("this model has no segment embeddings; only separators mark the texts")
        x = self.position.embed(x, pos)
        x = self.dropout(x if self.norm is None else self.norm(x, pos))
        return x if self.proj is None else self.proj(x)
