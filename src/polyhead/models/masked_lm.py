"""Encoder-only Transformers: masked language models, classifiers, encoders of texts, token detectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.registry import POOLING
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding, Head, HeadTransform
from polyhead.nn.feed_forward.mlp import MLP_ACTIVATIONS
from polyhead.nn.loss import LOGITS_CHUNK
from polyhead.nn.pooling import DenseMap
from polyhead.nn.positions import AnyPositions, plain_positions
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

    def forward(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C). Position -1 marks padding; None means full rows."""
        out: Tensor = self.stack(self.embedding(tokens, pos, segments), pos)
        return out


class MaskedLM(HeadTransform):
    """An encoder that predicts masked tokens (Devlin et al., 2018, sec. 3.1)."""

    def __init__(self, config: ModelConfig, embedding: Embedding | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, embedding)
        self.add_transform(config)
        self.head = Head.from_config(config, self.encoder.embedding.token)

    def forward(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, T, V) of the token at each position itself."""
        logits: Tensor = self.head(self.features(tokens, pos, segments))
        return logits

    def features(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """The input of the LM head, as wide as the embeddings: (B, T) -> (B, T, E)."""
        return self.apply_transform(self.encoder(tokens, pos, segments), pos)


class NSPModel(MaskedLM):
    """A masked LM with a next-sentence head, W tanh(U x_1 + b) + c (Devlin et al., 2018, sec. 3.1).

    Nothing here trains that head; a classifier initialised from it takes the pooler, U and b.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.pooler = POOLING.build(config.pooling or Choice("first"), config)
        self.follows = nn.Linear(config.d_model, 2)


class Classifier(nn.Module):
    """An encoder with a classification head (Devlin et al., 2018, sec. 4.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.pooler = POOLING.build(config.pooling or Choice("first"), config)
        self.dropout = Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, len(config.labels))

    def forward(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, L) of the classes in ``config.labels``."""
        pooled = self.pooler(self.encoder(tokens, pos, segments), plain_positions(pos))
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


class TokenClassifier(nn.Module):
    """An encoder with a linear map from each token to the labels (Devlin et al., 2018, sec. 5.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.dropout = Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, len(config.labels))

    def forward(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, T, L) of the labels of each token."""
        logits: Tensor = self.classifier(self.dropout(self.encoder(tokens, pos, segments)))
        return logits


class QuestionAnswerer(TokenClassifier):
    """An encoder of a question and a context: two logits per token, as first and as last of the answer.

    Devlin et al., 2018, sec. 4.2.
    """


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

    def forward(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C)."""
        out: Tensor = self.encoder(tokens, pos, segments)
        return out


PooledModel = NSPModel | Classifier | SentenceEncoder
"""A model that may have a pooler."""


class ReplacedTokenDetector(nn.Module):
    """An encoder that detects tokens replaced by a smaller generator (Clark et al., 2020, sec. 2).

    The generator is the same model with fewer layers (``config.generator_layers``); both share the embedding.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.detector_transform = nn.Linear(config.d_model, config.d_model)
        assert config.head_transform_activation != "none"
        self.activation = MLP_ACTIVATIONS[config.head_transform_activation]()
        self.detector = nn.Linear(config.d_model, 1)
        self.generator = MaskedLM(config.generator_config, self.encoder.embedding)

    def forward(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, T) that each token was replaced."""
        x = self.detector_transform(self.encoder(tokens, pos, segments))
        logits: Tensor = self.detector(self.activation(x)).squeeze(-1)
        return logits

    def encoder_only(self) -> SentenceEncoder:
        """The encoder as a SentenceEncoder, which returns vectors."""
        with torch.device("meta"):
            sentence_encoder = SentenceEncoder(
                self.config.model_copy(update={"generator_layers": 0, "pooling": None})
            )
        sentence_encoder.encoder = self.encoder
        return sentence_encoder

    @torch.no_grad()
    def sample_tokens(self, features: Tensor, uniforms: Tensor) -> Tensor:
        """Sample tokens from the generator, given its head's input: (N, C), uniforms (N,) in [0, 1) -> (N,).

        By inverse CDF: the first token at which the cumulative probability exceeds ``uniforms``.
        """
        tokens = []
        for x, threshold in zip(features.split(LOGITS_CHUNK), uniforms.split(LOGITS_CHUNK), strict=True):
            sums = self.generator.head(x).float().softmax(-1).cumsum(-1)
            tokens.append(torch.searchsorted(sums, threshold[:, None] * sums[:, -1:], right=True))
        return torch.cat(tokens).squeeze(-1).clamp(max=self.config.vocab_size - 1)
