"""Token embeddings, and the head that maps features to logits, with the transform before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config.model import ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.option_types import resolve_factor
from polyhead.core.registry import NORM
from polyhead.nn.device import is_traced
from polyhead.nn.dropout import Dropout
from polyhead.nn.feed_forward.mlp import MLP_ACTIVATIONS
from polyhead.nn.pooling import has_transform_bias
from polyhead.nn.position.base import Position
from polyhead.nn.positions import AnyPositions, Positions, plain_positions
from polyhead.nn.shard_plan import VocabularyShard


class Embedding(nn.Module):
    """Token embeddings, scaled, with positions and dropout (Vaswani et al., 2017, sec. 3.4).

    Optionally with segment embeddings (Devlin et al., 2018, figure 2) and a norm. If the embedding width E
    differs from d_model, a linear map follows: in a decoder on the token embeddings alone (Zhang et al.,
    2022, OPT of 350 M), in an encoder on the result (Lan et al., 2019, sec. 3.1).
    """

    def __init__(
        self,
        token: nn.Embedding,
        position: Position,
        scale: float,
        dropout: float,
        segment: nn.Embedding | None = None,
        norm: nn.Module | None = None,
        token_proj: nn.Linear | None = None,
        proj: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.token, self.position, self.scale, self.dropout = token, position, scale, Dropout(dropout)
        self.token_proj, self.segment, self.norm, self.proj = token_proj, segment, norm, proj

    @classmethod
    def from_config(cls, config: ModelSpec, token: nn.Embedding, position: Position) -> Embedding:
        """Build from a config."""
        width, summed = config.embedding_width, config.position_width
        segment = nn.Embedding(config.n_segments, summed) if config.n_segments else None
        norm = NORM.build(config.norm, summed) if config.embedding_norm else None
        scale = resolve_factor(config.scale_embedding, width**0.5)
        token_proj = proj = None
        if config.d_embedding is not None and config.kind == "decoder":
            token_proj = nn.Linear(width, summed, bias=False)
        elif config.d_embedding is not None:
            proj = nn.Linear(summed, config.d_model)
        return cls(token, position, scale, config.dropout, segment, norm, token_proj, proj)

    def forward(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, C); segments (B, T) count from 0, and None means all 0."""
        x = self.token(tokens) * self.scale
        x = x if self.token_proj is None else self.token_proj(x)
        if self.segment is not None:
            x = x + (self.segment.weight[0] if segments is None else self.segment(segments))
        elif segments is not None:
            raise UserError("this model has no segment embeddings; only separators mark the texts")
        at = pos.pos if isinstance(pos, Positions) else pos
        is_remote = at is not None and at.device.type != "cpu" and not is_traced()
        if pos is not None and is_remote and self.position.kind == "embeddings":
            # the scheme itself would have to read the device
            self.position.reserve(int(Positions.of(pos).readable.max()) + 1)
        x = self.position.embed(x, at)
        x = self.dropout(x if self.norm is None else self.norm(x, at))
        return x if self.proj is None else self.proj(x)


class Head(nn.Module):
    """x Wᵀ + b: logits of the vocabulary; W may be the embedding itself (Press & Wolf, 2017).

    With ``scale`` the input is scale · x; with ``softcap`` c the logits are c tanh(logits / c), within (-c,
    c).
    """

    vocabulary: VocabularyShard | None = None
    """The tokens of this rank, if the weight and the bias are sharded over ranks."""

    def __init__(
        self,
        weight: Tensor,
        bias: nn.Parameter | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.register_parameter("bias", bias)
        self.bias: nn.Parameter | None
        self.scale, self.softcap = scale, softcap

    @classmethod
    def from_config(cls, config: ModelSpec, embedding: nn.Embedding) -> Head:
        """Build from a config, tied to the embedding or with its own matrix."""
        weight = embedding.weight
        if config.tie_embeddings in ("inputs", "none"):
            weight = nn.Parameter(torch.empty_like(weight))
            nn.init.normal_(weight, std=config.embedding_width**-0.5)
        bias = nn.Parameter(torch.zeros_like(weight[:, 0])) if config.lm_head_bias else None
        scale = 1 / resolve_factor(config.logits_scale, config.embedding_width**0.5)
        return cls(weight, bias, scale, config.logit_softcap)

    def for_tokens(self, tokens: Tensor) -> Head:
        """A head restricted to these tokens, in their order: tokens (n,) -> head (..., C) -> (..., n)."""
        bias = None if self.bias is None else nn.Parameter(self.bias[tokens], requires_grad=False)
        return Head(self.weight[tokens], bias, self.scale, self.softcap)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        return self.apply_softcap(F.linear(self.scale_input(x), self.weight, self.bias))

    def scale_input(self, x: Tensor) -> Tensor:
        """The scaled input, which is multiplied by the weight."""
        return x if self.scale == 1 else x * self.scale

    def apply_softcap(self, scores: Tensor) -> Tensor:
        """Apply the softcap to the logits, if there is one."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


class HeadTransform(nn.Module):
    """A model whose head may have a transform, as that of BERT has: the norm of f(W x + b).

    A base class and no part of the model, so that the names of weights in saved runs stay the same.
    """

    transform: nn.Linear | None

    def add_transform(self, config: ModelSpec) -> None:
        """Build the transform of a config, if it has one."""
        self.transform = None
        if config.has_head_transform:
            self.transform = nn.Linear(
                config.d_model, config.embedding_width, bias=has_transform_bias(config)
            )
            assert config.head_transform_activation != "none"
            self.activation = MLP_ACTIVATIONS[config.head_transform_activation]()
            self.transform_norm = NORM.build(config.norm, config.embedding_width)

    def apply_transform(self, x: Tensor, pos: AnyPositions = None) -> Tensor:
        """The transform of the layers' output, token by token: (..., C) -> (..., E)."""
        if self.transform is None:
            return x
        out: Tensor = self.transform_norm(self.activation(self.transform(x)), plain_positions(pos))
        return out
