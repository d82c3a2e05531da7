"""From the vectors of a text's tokens to one vector of the text: (B, T, C), (B, T) -> (B, C).

What is pooled may go through one more linear map with an activation, as in the classifiers of the literature: tanh in
BERT, relu in DistilBERT, gelu with a norm in ModernBERT. Padding never counts.

Options:
  activation: after a linear map of the pooled vector; without one there is no map
  norm: the model's norm after the activation
  map_first: of mean, map each token, and take the mean of what comes of it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config import ModelSection
from polyhead.dense import Dense
from polyhead.errors import UserError
from polyhead.registry import NORM, POOLING

Activation = Literal["none", "tanh", "relu", "gelu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
}
Pool = Callable[[Tensor, Tensor | None], Tensor]


def biased(config: ModelSection) -> bool:
    """Whether the maps between an encoder's layers and its scores have biases: as it says, else as the feed-forwards."""
    return bool(config.feed_forward.options.get("bias", True)) if config.map_bias is None else config.map_bias


class Pooler(nn.Module):
    """One vector of each row, and a map of it where there is an activation."""

    def __init__(
        self,
        config: ModelSection,
        pool: Pool,
        activation: Activation,
        norm: bool,
        map_first: bool = False,
    ) -> None:
        super().__init__()
        if map_first and activation == "none":
            raise UserError("map_first of pooling wants the map that it has with an activation alone")
        if norm and activation == "none":
            raise UserError(
                "norm of pooling follows the linear map, which pooling has with an activation alone"
            )
        self.pool, self.activation, self.map_first = pool, ACTIVATIONS.get(activation), map_first
        self.proj = (
            nn.Linear(config.d_model, config.d_model, bias=biased(config)) if self.activation else None
        )
        self.norm = NORM.build(config.norm, config.d_model) if norm else None

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T, C), (B, T) -> (B, C)."""
        return self.pool(self.mapped(x), pos) if self.map_first else self.mapped(self.pool(x, pos))

    def mapped(self, x: Tensor) -> Tensor:
        """Through the map, its activation and its norm, if there are any: (..., C) -> (..., C)."""
        if self.activation is None or self.proj is None:
            return x
        x = self.activation(self.proj(x))
        return x if self.norm is None else self.norm(x)


class DenseMap(nn.Module):
    """y = g(W x + b), of the one vector that was made of a text."""

    def __init__(self, d_in: int, dense: Dense) -> None:
        super().__init__()
        self.proj = nn.Linear(d_in, dense.width, bias=dense.bias)
        self.activation = ACTIVATIONS.get(dense.activation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) -> (B, width)."""
        out: Tensor = self.proj(x)
        return out if self.activation is None else self.activation(out)


def first_token(x: Tensor, pos: Tensor | None) -> Tensor:
    """The vector of each row's position 0, wherever it stands: (B, T, C), (B, T) -> (B, C)."""
    if pos is None:
        return x[:, 0]
    return x[torch.arange(x.size(0), device=x.device), (pos == 0).int().argmax(1)]


def mean_token(x: Tensor, pos: Tensor | None) -> Tensor:
    """The mean vector of each row; 0 for one that is all padding."""
    if pos is None:
        return x.mean(1)
    real = (pos >= 0)[:, :, None]
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


def largest_token(x: Tensor, pos: Tensor | None) -> Tensor:
    """The largest value of each feature in its row; 0 for one that is all padding."""
    if pos is None:
        return x.amax(1)
    real = pos >= 0
    most = x.masked_fill(~real[:, :, None], -torch.inf).amax(1)
    return most.where(real.any(1)[:, None], 0)


def last_token(x: Tensor, pos: Tensor | None) -> Tensor:
    """The vector of the last token of each row, wherever padding stands: (B, T, C), (B, T) -> (B, C)."""
    if pos is None:
        return x[:, -1]
    return x[torch.arange(x.size(0), device=x.device), pos.argmax(1)]


@POOLING.register("first")
def first(config: ModelSection, *, activation: Activation = "tanh", norm: bool = False) -> Pooler:
    """The vector of the first token, which stands for the whole text, as BERT's [CLS].

    Equation: y = tanh(W x_1 + b)
    Paper: Devlin et al., 2018, sec. 4
    When: to fine-tune a model that was trained so
    """
    return Pooler(config, first_token, activation, norm)


@POOLING.register("mean")
def mean(
    config: ModelSection, *, activation: Activation = "none", norm: bool = False, map_first: bool = False
) -> Pooler:
    """The mean of all tokens.

    Equation: y = 1/T Σ_t x_t,  or, with map_first, y = 1/T Σ_t g(W x_t + b)
    Paper: Reimers & Gurevych, 2019, sec. 3
    When: sentence embeddings; classes that are learned from scratch
    """
    return Pooler(config, mean_token, activation, norm, map_first)


@POOLING.register("max")
def largest(config: ModelSection, *, activation: Activation = "none", norm: bool = False) -> Pooler:
    """The largest value of each feature over all tokens: one strong word is enough.

    Equation: y_c = max_t x_{t,c}
    Paper: Collobert et al., 2011, sec. 3.3.2
    When: single words decide, as in questions and sentiment
    """
    return Pooler(config, largest_token, activation, norm)


@POOLING.register("last")
def last(config: ModelSection, *, activation: Activation = "none", norm: bool = False) -> Pooler:
    """The vector of the last token, which alone has seen the whole text where no token sees what follows it.

    Equation: y = x_T
    Paper: Wang et al., 2023, Improving text embeddings with large language models, sec. 3.1
    When: vectors of language models, as Qwen3-Embedding and E5-Mistral
    """
    return Pooler(config, last_token, activation, norm)
