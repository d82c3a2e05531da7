"""Pooling: the vectors of a text's tokens to one vector of the text, (B, T, C), (B, T) -> (B, C).

The pooled vector may go through a linear map with an activation, as in published classifiers: tanh in BERT,
relu in DistilBERT, gelu with a norm in ModernBERT. Padding is excluded.

Options:
  activation: after a linear map of the pooled vector; none: no map
  norm: the model's norm after the activation
  map_first: for mean, apply the map to each token before taking the mean
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config.config_sections import ProjectionConfig
from polyhead.config.model import ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.registry import NORM, POOLING

PoolingActivation = Literal["none", "tanh", "relu", "gelu"]
POOLING_ACTIVATIONS: dict[PoolingActivation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
}
PoolFunction = Callable[[Tensor, Tensor | None], Tensor]


def has_transform_bias(config: ModelSpec) -> bool:
    """Whether maps between an encoder and its heads have biases: ``head_transform_bias``, else as the
    feed-forwards.
    """
    return (
        bool(config.feed_forward.options.get("bias", True))
        if config.head_transform_bias is None
        else config.head_transform_bias
    )


class Pooler(nn.Module):
    """Pools each row to one vector, followed by a map if there is an activation."""

    def __init__(
        self,
        config: ModelSpec,
        pool: PoolFunction,
        activation: PoolingActivation,
        norm: bool,
        map_first: bool = False,
    ) -> None:
        super().__init__()
        if map_first and activation == "none":
            raise UserError("map_first of pooling requires an activation")
        if norm and activation == "none":
            raise UserError("norm of pooling requires an activation, which adds the linear map before it")
        self.pool, self.activation, self.map_first = pool, POOLING_ACTIVATIONS.get(activation), map_first
        self.proj = (
            nn.Linear(config.d_model, config.d_model, bias=has_transform_bias(config))
            if self.activation
            else None
        )
        self.norm = NORM.build(config.norm, config.d_model) if norm else None

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T, C), (B, T) -> (B, C)."""
        if self.map_first:
            return self.pool(self.apply_map(x, pos), pos)
        return self.apply_map(self.pool(x, pos), None if pos is None else pos.amax(1))

    def apply_map(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """Apply the map, its activation and its norm, if there are any: (..., C), (...) -> (..., C)."""
        if self.activation is None or self.proj is None:
            return x
        x = self.activation(self.proj(x))
        return x if self.norm is None else self.norm(x, pos)


class DenseMap(nn.Module):
    """y = g(W x + b) on the pooled vector of a text."""

    def __init__(self, d_in: int, dense: ProjectionConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(d_in, dense.width, bias=dense.bias)
        self.activation = POOLING_ACTIVATIONS.get(dense.activation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C) -> (B, width)."""
        out: Tensor = self.proj(x)
        return out if self.activation is None else self.activation(out)


def pool_first_token(x: Tensor, pos: Tensor | None) -> Tensor:
    """The vector at position 0 of each row, in any slot: (B, T, C), (B, T) -> (B, C)."""
    if pos is None:
        return x[:, 0]
    return x[torch.arange(x.size(0), device=x.device), (pos == 0).int().argmax(1)]


def pool_mean(x: Tensor, pos: Tensor | None) -> Tensor:
    """The mean vector of each row; 0 for rows of padding only."""
    if pos is None:
        return x.mean(1)
    real = (pos >= 0)[:, :, None]
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


def pool_max(x: Tensor, pos: Tensor | None) -> Tensor:
    """The maximum of each feature over the row; 0 for rows of padding only."""
    if pos is None:
        return x.amax(1)
    real = pos >= 0
    maximum = x.masked_fill(~real[:, :, None], -torch.inf).amax(1)
    return maximum.where(real.any(1)[:, None], 0)


def pool_last_token(x: Tensor, pos: Tensor | None) -> Tensor:
    """The vector of the last token of each row, with padding on any side: (B, T, C), (B, T) -> (B, C)."""
    if pos is None:
        return x[:, -1]
    return x[torch.arange(x.size(0), device=x.device), pos.argmax(1)]


@POOLING.register("first")
def first_pooling(config: ModelSpec, *, activation: PoolingActivation = "tanh", norm: bool = False) -> Pooler:
    """The vector of the first token, which represents the text, such as BERT's [CLS].

    Equation: y = tanh(W x_1 + b)
    Paper: Devlin et al., 2018, sec. 4
    When: to fine-tune a model that was trained this way
    """
    return Pooler(config, pool_first_token, activation, norm)


@POOLING.register("mean")
def mean_pooling(
    config: ModelSpec, *, activation: PoolingActivation = "none", norm: bool = False, map_first: bool = False
) -> Pooler:
    """The mean over all tokens.

    Equation: y = 1/T Σ_t x_t,  or, with map_first, y = 1/T Σ_t g(W x_t + b)
    Paper: Reimers & Gurevych, 2019, sec. 3
    When: sentence embeddings; classifiers trained from scratch
    """
    return Pooler(config, pool_mean, activation, norm, map_first)


@POOLING.register("max")
def max_pooling(config: ModelSpec, *, activation: PoolingActivation = "none", norm: bool = False) -> Pooler:
    """The maximum of each feature over all tokens: one strong word is enough.

    Equation: y_c = max_t x_{t,c}
    Paper: Collobert et al., 2011, sec. 3.3.2
    When: single words decide, as in questions and sentiment
    """
    return Pooler(config, pool_max, activation, norm)


@POOLING.register("last")
def last_pooling(config: ModelSpec, *, activation: PoolingActivation = "none", norm: bool = False) -> Pooler:
    """The vector of the last token, the only one that attends to the whole text in a causal model.

    Equation: y = x_T
    Paper: Wang et al., 2023, Improving text embeddings with large language models, sec. 3.1
    When: embeddings from language models, such as Qwen3-Embedding and E5-Mistral
    """
    return Pooler(config, pool_last_token, activation, norm)
