"""Encoder-only Transformers: for masked tokens, for classes, for vectors."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.config import ModelConfig
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding
from polyhead.nn.feed_forward.layers import ACTIVATIONS
from polyhead.nn.head import Head
from polyhead.nn.pooling import DenseMap, biased
from polyhead.nn.stack import build_stack
from polyhead.registry import NORM, POOLING, Choice


class Encoder(nn.Module):
    """Every token sees all of its row, and becomes a vector (Devlin et al., 2018); with ``causal`` what is before it alone."""

    def __init__(self, config: ModelConfig, embedding: Embedding | None = None) -> None:
        super().__init__()
        if embedding is None:
            position = config.common_position(causal=config.causal)
            embedding = Embedding.of(
                config, nn.Embedding(config.vocab_size, config.embedding_width), position
            )
        self.embedding = embedding
        self.stack = build_stack(
            config, embedding.position, config.n_layers, causal=config.causal, cross=False
        )

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C). Position -1 marks padding; None means whole rows."""
        out: Tensor = self.stack(self.embedding(tokens, pos, segments), pos)
        return out


class MaskedLM(nn.Module):
    """An encoder that says which tokens stood where some were hidden (Devlin et al., 2018, sec. 3.1)."""

    def __init__(self, config: ModelConfig, embedding: Embedding | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, embedding)
        self.transform = None
        if config.head_activation != "none":
            self.transform = nn.Linear(config.d_model, config.embedding_width, bias=biased(config))
            self.activation = ACTIVATIONS[config.head_activation]()
            self.transform_norm = NORM.build(config.norm, config.embedding_width)
        self.head = Head.of(config, self.encoder.embedding.token)

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, T, V) of the token at each place itself."""
        logits: Tensor = self.head(self.features(tokens, pos, segments))
        return logits

    def features(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """What the head reads, as wide as the embeddings: (B, T) -> (B, T, E)."""
        return self.transformed(self.encoder(tokens, pos, segments), pos)

    def transformed(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """The encoder's output as the head reads it: (..., C) -> (..., E), token by token."""
        if self.transform is None:
            return x
        out: Tensor = self.transform_norm(self.activation(self.transform(x)), pos)
        return out


class PairLM(MaskedLM):
    """One that learned beside it which texts follow others, from their vectors: W tanh(U x_1 + b) + c (Devlin et al., 2018, sec. 3.1).

    Nothing is trained so here; a classifier that begins with it takes the pooler, U and b.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.pooler = POOLING.build(config.pooling or POOLING.check(Choice("first")), config)
        self.follows = nn.Linear(config.d_model, 2)


class Classifier(nn.Module):
    """An encoder that tells classes of texts apart (Devlin et al., 2018, sec. 4.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.pooler = POOLING.build(config.pooling or POOLING.check(Choice("first")), config)
        self.dropout = Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, len(config.labels))

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, L) of the classes in ``config.labels``."""
        pooled = self.pooler(self.encoder(tokens, pos, segments), pos)
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


class Embedder(nn.Module):
    """An encoder alone: a vector for each token, and one for the text if the config names a pooling.

    That of a text, whichever way it is pooled, goes through the maps of ``dense`` (Reimers & Gurevych, 2020).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.pooler = POOLING.build(config.pooling, config) if config.pooling else None
        widths = [config.d_model, *(dense.width for dense in config.dense)]
        self.dense = nn.ModuleList(map(DenseMap, widths, config.dense))

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C)."""
        out: Tensor = self.encoder(tokens, pos, segments)
        return out
