"""The decoder-only Transformer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from polyhead.cache.base import Cache, CacheShape
from polyhead.config import ModelConfig
from polyhead.nn.embedding import Embedding
from polyhead.nn.head import Head
from polyhead.nn.kv import Memory
from polyhead.nn.stack import build_stack


class CausalLM(nn.Module):
    """Each token predicts the next (Radford et al., 2018).

    A row may hold several documents one after another: positions that begin again at 0 begin a new one, which
    sees nothing of those before.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        token = nn.Embedding(config.vocab_size, config.embedding_width)
        position = config.common_position(causal=True)
        self.embedding = Embedding.of(config, token, position)
        self.stack = build_stack(config, position, config.n_layers, causal=True, cross=False)
        narrow = config.d_embedding is not None
        self.out_proj = nn.Linear(config.d_model, config.embedding_width, bias=False) if narrow else None
        self.head = Head.of(config, token)

    def forward(self, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, T, V) of the next tokens. Position -1 marks padding; None means whole rows."""
        logits: Tensor = self.head(self.features(tokens, pos))
        return logits

    def features(self, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """What the head reads, as wide as the embeddings: (B, T) -> (B, T, E)."""
        return self._narrowed(self.encoder(tokens, pos))

    def encoder(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """As that of an encoder, but each vector knows of what stands before it alone: (B, T) -> (B, T, C)."""
        out: Tensor = self.stack(self.embedding(tokens, pos, segments), pos)
        return out

    def decode(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: Sequence[Memory] | None = None
    ) -> Tensor:
        """(N, T), (N, T) -> logits (N, T, V) of the next tokens; there is no memory to read."""
        logits: Tensor = self.head(self.read(tokens, pos, cache))
        return logits

    def read(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: Sequence[Memory] | None = None
    ) -> Tensor:
        """As ``decode``, but what the head reads, (N, T, E): for tokens whose successors are known."""
        return self._narrowed(self.stack(self.embedding(tokens, pos), pos, cache))

    def _narrowed(self, x: Tensor) -> Tensor:
        return x if self.out_proj is None else self.out_proj(x)

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows, 0 and on."""
        return self.config.vocab_size

    @property
    def cache_shape(self) -> CacheShape:
        """What a cache must hold for this model."""
        return self.stack.cache_shape(self.config, self.embedding.token.weight)

    @property
    def counts_tokens(self) -> bool:
        """Whether some part must be told which tokens are padding, even where none can see them."""
        return self.stack.counts_tokens()
