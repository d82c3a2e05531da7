"""The transform between the layers of a model and its vocabulary logits."""

from __future__ import annotations

from torch import Tensor, nn

from polyhead.config.model import ModelSpec
from polyhead.core.registry import NORM
from polyhead.nn.feed_forward.mlp import MLP_ACTIVATIONS
from polyhead.nn.pooling import has_transform_bias
from polyhead.nn.positions import AnyPositions, plain_positions


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
