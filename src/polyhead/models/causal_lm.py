"""The decoder-only Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.embedding import Embedding, Head
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.positions import AnyPositions
from polyhead.nn.stack import Stack, build_common_position, build_stack


class CausalLM(nn.Module):
    """A decoder-only language model: each token predicts the next (Radford et al., 2018).

    A row may hold several documents in sequence: a position of 0 starts a new document, which does not attend
    to earlier ones.
    """

    encode: None = None  # it reads no source
    decode_greedy: Any = None  # set by kernels.pack_model

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        token = nn.Embedding(config.vocab_size, config.embedding_width)
        position = build_common_position(config, causal=True)
        self.embedding = Embedding.from_config(config, token, position)
        self.stack = build_stack(config, position, config.n_layers, causal=True, cross=False)
        narrow = config.d_embedding is not None
        self.out_proj = nn.Linear(config.d_model, config.embedding_width, bias=False) if narrow else None
        self.head = Head.from_config(config, token)

    def forward(self, tokens: Tensor, pos: AnyPositions = None) -> Tensor:
        """(B, T) -> logits (B, T, V) of the next tokens. Position -1 marks padding; None means full rows."""
        logits: Tensor = self.head(self.features(tokens, pos))
        return logits

    def encoder(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """Hidden states as of an encoder, but causal: (B, T) -> (B, T, C)."""
        out: Tensor = self.stack(self.embedding(tokens, pos, segments), pos)
        return out

    def decode(
        self,
        tokens: Tensor,
        pos: AnyPositions,
        cache: Cache | None,
        memory: Sequence[EncoderMemory] | None = None,
    ) -> Tensor:
        """One decoding step: (N, T), (N, T) -> logits (N, T, V) of the next tokens; ``memory`` is unused."""
        logits: Tensor = self.head(self.decode_features(tokens, pos, cache))
        return logits

    def decode_features(
        self,
        tokens: Tensor,
        pos: AnyPositions = None,
        cache: Cache | None = None,
        memory: Sequence[EncoderMemory] | None = None,
    ) -> Tensor:
        """Like ``decode``, but returns the LM head's input, (N, T, E): for tokens with known successors."""
        x: Tensor = self.stack(self.embedding(tokens, pos), pos, cache)
        return x if self.out_proj is None else self.out_proj(x)

    features = decode_features

    @property
    def decoder_parts(self) -> tuple[Embedding, Stack, Head] | None:
        """The parts that a decoding step runs, in their order; None if there are others."""
        return (self.embedding, self.stack, self.head) if self.out_proj is None else None

    @property
    def vocab_size(self) -> int:
        """Number of token ids, from 0."""
        return self.config.vocab_size

    source_size = vocab_size  # it reads no source

    @property
    def cache_shape(self) -> CacheShape:
        """The cache shape that this model needs."""
        return self.stack.make_cache_shape(self.config, self.embedding.token.weight)

    @property
    def needs_padding_mask(self) -> bool:
        """Whether some part needs to know which tokens are padding, even where no token attends to them."""
        return self.stack.needs_padding_mask()
