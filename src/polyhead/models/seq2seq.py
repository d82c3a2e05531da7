"""The encoder-decoder Transformer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyhead.cache.base import Cache, CacheShape
from polyhead.config import ModelConfig
from polyhead.nn.embedding import Embedding
from polyhead.nn.head import Head
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.nn.stack import build_stack
from polyhead.registry import POSITION


class Seq2Seq(nn.Module):
    """Encoder, decoder that reads it, head over the vocabulary (Vaswani et al., 2017, figure 1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source = nn.Embedding(config.vocab_size, config.d_model)
        target = source if config.tie_embeddings == "all" else nn.Embedding(config.vocab_size, config.d_model)
        scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.encoder_embedding = Embedding(source, self._position(), scale, config.dropout)
        self.decoder_embedding = Embedding(target, self._position(), scale, config.dropout)
        self.encoder = build_stack(
            config, self.encoder_embedding.position, config.n_layers, causal=False, cross=False
        )
        self.decoder = build_stack(
            config, self.decoder_embedding.position, config.decoder_layers, causal=True, cross=True
        )
        tied = config.tie_embeddings != "none"
        self.head = Head(
            target.weight
            if tied
            else nn.Parameter(torch.empty_like(target.weight).normal_(std=config.d_model**-0.5))
        )

    def _position(self) -> Position:
        c = self.config
        position: Position = POSITION.build(c.position, c.d_model, c.n_heads, c.head_dim, c.max_len)
        return position

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_pos: Tensor | None = None,
        target_pos: Tensor | None = None,
    ) -> Tensor:
        """Teacher forced: (B, S), (B, T) -> logits (B, T, V). Position -1 marks padding; None means none."""
        logits: Tensor = self.head(self.features(source, target, source_pos, target_pos))
        return logits

    def features(
        self,
        source: Tensor,
        target: Tensor,
        source_pos: Tensor | None = None,
        target_pos: Tensor | None = None,
    ) -> Tensor:
        """What the head reads: (B, S), (B, T) -> (B, T, C)."""
        x: Tensor = self.decoder_embedding(target, target_pos)
        out: Tensor = self.decoder(x, target_pos, None, self.encode(source, source_pos))
        return out

    def encode(self, source: Tensor, source_pos: Tensor | None = None) -> list[KV]:
        """(B, S) -> the keys and values of the last encoder output, once for every decoder layer."""
        x = self.encoder(self.encoder_embedding(source, source_pos), source_pos)
        return [layer.cross.remember(x, source_pos) for layer in self.decoder.layers]  # type: ignore[union-attr, operator]

    def decode(self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: Sequence[KV]) -> Tensor:
        """(N, T), (N, T) -> logits (N, T, V) of the next tokens; N may be a multiple of memory's rows."""
        x = self.decoder_embedding(tokens, pos)
        logits: Tensor = self.head(self.decoder(x, pos, cache, memory))
        return logits

    @property
    def cache_shape(self) -> CacheShape:
        """What a cache must hold for this model."""
        c, weight = self.config, self.decoder_embedding.token.weight
        return CacheShape(c.decoder_layers, c.kv_heads, c.head_dim, c.head_dim, weight.dtype, weight.device)
