"""The encoder-decoder Transformer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from polyhead.cache.base import Cache, CacheShape
from polyhead.config import ModelConfig
from polyhead.nn.embedding import Embedding
from polyhead.nn.head import Head
from polyhead.nn.kv import Memory
from polyhead.nn.stack import build_stack


class Seq2Seq(nn.Module):
    """Encoder, decoder that reads it, head over the vocabulary (Vaswani et al., 2017, figure 1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source = nn.Embedding(config.vocab_size, config.d_model)
        target = (
            source
            if config.tie_embeddings in ("all", "inputs")
            else nn.Embedding(config.vocab_size, config.d_model)
        )
        here, there = (config.common_position(causal) for causal in (False, True))
        self.encoder_embedding = Embedding.of(config, source, here)
        self.decoder_embedding = Embedding.of(config, target, there)
        self.encoder = build_stack(config, here, config.n_layers, causal=False, cross=False)
        self.decoder = build_stack(config, there, config.decoder_layers, causal=True, cross=True)
        self.head = Head.of(config, target)

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

    def encode(self, source: Tensor, source_pos: Tensor | None = None) -> list[Memory]:
        """(B, S) -> the last encoder output as each decoder layer will read it: its keys and values, for attention."""
        x = self.encoder(self.encoder_embedding(source, source_pos), source_pos)
        return [layer.remember(x, source_pos) for layer in self.decoder.layers]  # type: ignore[operator]

    def decode(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: Sequence[Memory] | None
    ) -> Tensor:
        """(N, T), (N, T) -> logits (N, T, V) of the next tokens; N may be a multiple of memory's rows."""
        logits: Tensor = self.head(self.read(tokens, pos, cache, memory))
        return logits

    def read(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: Sequence[Memory] | None
    ) -> Tensor:
        """As ``decode``, but what the head reads, (N, T, C): for tokens whose successors are known."""
        out: Tensor = self.decoder(self.decoder_embedding(tokens, pos), pos, cache, memory)
        return out

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows, 0 and on."""
        return self.config.vocab_size

    @property
    def cache_shape(self) -> CacheShape:
        """What a cache must hold for this model."""
        return self.decoder.cache_shape(self.config, self.decoder_embedding.token.weight)

    @property
    def counts_tokens(self) -> bool:
        """Whether some part must be told which tokens are padding, even where none can see them."""
        return self.encoder.counts_tokens() or self.decoder.counts_tokens()
