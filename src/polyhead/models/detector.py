"""An encoder that tells which tokens of a text are not its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.config import ModelConfig
from polyhead.models.masked_lm import Embedder, Encoder, MaskedLM
from polyhead.nn.feed_forward.layers import ACTIVATIONS
from polyhead.nn.loss import CHUNK


class Detector(nn.Module):
    """An encoder that tells which tokens another, smaller one has put in (Clark et al., 2020, sec. 2).

    The generator is the same model with fewer layers (``config.generator``); both read by the same embedding.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.detector_transform = nn.Linear(config.d_model, config.d_model)
        assert config.head_activation != "none"
        self.activation = ACTIVATIONS[config.head_activation]()
        self.detector = nn.Linear(config.d_model, 1)
        self.generator = MaskedLM(config.of_generator, self.encoder.embedding)

    def forward(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> logits (B, T) of each token being another than stood there."""
        x = self.detector_transform(self.encoder(tokens, pos, segments))
        logits: Tensor = self.detector(self.activation(x)).squeeze(-1)
        return logits

    def bare(self) -> Embedder:
        """Its encoder by itself, which gives vectors."""
        with torch.device("meta"):
            made = Embedder(self.config.model_copy(update={"generator": 0, "pooling": None}))
        made.encoder = self.encoder
        return made

    @torch.no_grad()
    def drawn(self, features: Tensor, chance: Tensor) -> Tensor:
        """Tokens as the generator says them, from what its head reads: (N, C), (N,) from 0 to 1 -> (N,).

        A token is drawn where the sum of the probabilities up to it passes ``chance``.
        """
        tokens = []
        for x, wanted in zip(features.split(CHUNK), chance.split(CHUNK), strict=True):
            sums = self.generator.head(x).float().softmax(-1).cumsum(-1)
            tokens.append(torch.searchsorted(sums, wanted[:, None] * sums[:, -1:], right=True))
        return torch.cat(tokens).squeeze(-1).clamp(max=self.config.vocab_size - 1)
