"""Encoder-only Transformers: masked language models, classifiers and sentence encoders."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import NORM, POOLING
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding
from polyhead.nn.feed_forward.mlp import MLP_ACTIVATIONS
from polyhead.nn.lm_head import Head
from polyhead.nn.pooling import DenseMap, has_transform_bias
from polyhead.nn.stack import build_common_position, build_stack


class Encoder(nn.Module):
    """Bidirectional encoder: every token attends to its whole row (Devlin et al., 2018).

    With ``causal`` it attends only to itself and earlier tokens.
    """

    def __init__(self, config: ModelConfig, embedding: Embedding | None = None) -> None:
        super().__init__()
        if embedding is None:
            position = build_common_position(config, config.causal)
            embedding = Embedding.from_config(
                config, nn.Embedding(config.vocab_size, config.embedding_width), position
            )
        self.embedding = embedding
        self.stack = build_stack(
            config, embedding.position, config.n_layers, causal=config.causal, cross=False
        )

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C). Position -1 marks padding; None means full rows."""
        out: Tensor = self.stack(self.embedding(tokens, pos, segments), pos)
        return out


class MaskedLM(nn.Module):
    """An encoder that predicts masked tokens (Devlin et al., 2018, sec. 3.1)."""

    def __init__(self, config: ModelConfig, embedding: Embedding | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, embedding)
        self.transform = None
        if config.head_transform_activation != "none":
            self.transform = nn.Linear(
                config.d_model, config.embedding_width, bias=has_transform_bias(config)
            )
            self.activation = MLP_ACTIVATIONS[config.head_transform_activation]()
            self.transform_norm = NORM.build(config.norm, config.embedding_width)
        self.head = Head.from_config(config, self.encoder.embedding.token)

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, T, V) of the token at each position itself."""
        logits: Tensor = self.head(self.features(tokens, pos, segments))
        return logits

    def features(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The input of the LM head, as wide as the embeddings: (B, T) -> (B, T, E)."""
        return self.apply_transform(self.encoder(tokens, pos, segments), pos)

    def apply_transform(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """The head's transform of the encoder's output, token by token: (..., C) -> (..., E)."""
        if self.transform is None:
            return x
        out: Tensor = self.transform_norm(self.activation(self.transform(x)), pos)
        return out


class NSPModel(MaskedLM):
    """A masked LM with a next-sentence head, W tanh(U x_1 + b) + c (Devlin et al., 2018, sec. 3.1).

    Nothing here trains that head; a classifier initialised from it takes the pooler, U and b.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.pooler = POOLING.build(config.pooling or POOLING.check(Choice("first")), config)
        self.follows = nn.Linear(config.d_model, 2)


class Classifier(nn.Module):
    """An encoder with a classification head (Devlin et al., 2018, sec. 4.1)."""

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


class SentenceEncoder(nn.Module):
    """An encoder without a head: a vector per token, and one per text if the config has a pooling.

    The pooled vector goes through the maps of ``dense`` (Reimers & Gurevych, 2020).
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
