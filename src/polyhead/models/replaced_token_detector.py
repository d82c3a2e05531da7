"""Encoder for replaced-token detection (ELECTRA)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.models.masked_lm import Encoder, MaskedLM, SentenceEncoder
from polyhead.nn.feed_forward.mlp import MLP_ACTIVATIONS
from polyhead.nn.loss import LOGITS_CHUNK


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

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
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
