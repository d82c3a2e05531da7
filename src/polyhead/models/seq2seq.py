"""The encoder-decoder Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.embedding import Embedding, Head, HeadTransform
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.positions import AnyPositions, plain_positions
from polyhead.nn.stack import Stack, build_common_position, build_stack


class Seq2Seq(HeadTransform):
    """Encoder, decoder with cross-attention, and LM head (Vaswani et al., 2017, figure 1)."""

    decode_greedy: Any = None  # set by kernels.pack_model

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, spec = config, config.encoder_spec
        source = nn.Embedding(spec.vocab_size, spec.d_model)
        target = (
            source
            if config.tie_embeddings in ("all", "inputs")
            else nn.Embedding(config.vocab_size, config.d_model)
        )
        encoder_position = build_common_position(spec, causal=False)
        decoder_position = build_common_position(config, causal=True)
        self.encoder_embedding = Embedding.from_config(spec, source, encoder_position)
        self.decoder_embedding = Embedding.from_config(config, target, decoder_position)
        self.encoder = build_stack(spec, encoder_position, config.n_layers, causal=False, cross=False)
        is_projected = config.encoder is not None and config.encoder.projection
        self.encoder_proj = nn.Linear(spec.d_model, config.d_model) if is_projected else None
        self.decoder = build_stack(config, decoder_position, config.decoder_layers, causal=True, cross=True)
        self.add_transform(config)
        self.head = Head.from_config(config, target)

    def forward(
        self, source: Tensor, target: Tensor, source_pos: AnyPositions = None, target_pos: AnyPositions = None
    ) -> Tensor:
        """Teacher forcing: (B, S), (B, T) -> logits (B, T, V). Position -1 marks padding; None means none."""
        logits: Tensor = self.head(self.features(source, target, source_pos, target_pos))
        return logits

    def features(
        self, source: Tensor, target: Tensor, source_pos: AnyPositions = None, target_pos: AnyPositions = None
    ) -> Tensor:
        """The input of the LM head: (B, S), (B, T) -> (B, T, C)."""
        x: Tensor = self.decoder_embedding(target, target_pos)
        encoded = self.encode_source(source, source_pos)
        out = self.decoder(x, target_pos, source=(encoded, plain_positions(source_pos)))
        return self.apply_transform(out, target_pos)

    def encode_source(self, source: Tensor, source_pos: AnyPositions = None) -> Tensor:
        """(B, S) -> the output of the encoder, as wide as the decoder reads it: (B, S, C)."""
        x: Tensor = self.encoder(self.encoder_embedding(source, source_pos), source_pos)
        return x if self.encoder_proj is None else self.encoder_proj(x)

    def encode(self, source: Tensor, source_pos: AnyPositions = None) -> list[EncoderMemory]:
        """(B, S) -> the encoder output as each decoder layer reads it; for attention, its keys and values."""
        x = self.encode_source(source, source_pos)
        return [layer.project_kv(x, plain_positions(source_pos)) for layer in self.decoder.blocks]

    def decode(
        self, tokens: Tensor, pos: AnyPositions, cache: Cache | None, memory: Sequence[EncoderMemory] | None
    ) -> Tensor:
        """One decoding step: (N, T), (N, T) -> logits (N, T, V) of the next tokens.

        N may be a multiple of memory's rows.
        """
        logits: Tensor = self.head(self.decode_features(tokens, pos, cache, memory))
        return logits

    def decode_features(
        self, tokens: Tensor, pos: AnyPositions, cache: Cache | None, memory: Sequence[EncoderMemory] | None
    ) -> Tensor:
        """Like ``decode``, but returns the LM head's input, (N, T, C): for tokens with known successors."""
        out = self.decoder(self.decoder_embedding(tokens, pos), pos, cache, memory)
        return self.apply_transform(out, pos)

    @property
    def decoder_parts(self) -> tuple[Embedding, Stack, Head] | None:
        """The parts that a decoding step runs, in their order; None if there are others."""
        return (self.decoder_embedding, self.decoder, self.head) if self.transform is None else None

    @property
    def vocab_size(self) -> int:
        """Number of token ids, from 0."""
        return self.config.vocab_size

    @property
    def source_size(self) -> int:
        """Number of token ids of sources."""
        return self.config.encoder_spec.vocab_size

    @property
    def cache_shape(self) -> CacheShape:
        """The cache shape that this model needs."""
        return self.decoder.make_cache_shape(self.config, self.decoder_embedding.token.weight)

    @property
    def needs_padding_mask(self) -> bool:
        """Whether some part needs to know which tokens are padding, even where no token attends to them."""
        return self.encoder.needs_padding_mask() or self.decoder.needs_padding_mask()
