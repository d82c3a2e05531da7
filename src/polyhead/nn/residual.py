"""Residual connections: how the input of a sub-layer and its output F become one vector.

Where the norm N is, before or after the sub-layer, is decided by ``model.norm_first``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from polyhead.config.model import ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.registry import RESIDUAL
from polyhead.nn.dropout import Dropout
from polyhead.nn.override import overridable


class ResidualFactors(NamedTuple):
    """The factors of a kind of residual: on x, and on the initial weights of the branch."""

    skip: float = 1.0
    init_gain: float = 1.0


class Residual(nn.Module):
    """Residual connection, pre-norm or post-norm: x + F(N(x)) or N(x + F(x)) (Xiong et al., 2020).

    ``sandwich_norm`` is an additional norm on the sub-layer's output: x + N'(F(N(x))) with pre-norm (Ding et
    al., 2021), and x + N'(F(x)) without a norm before it (Liu et al., 2022). ``scale`` is a factor on the
    branch (Granite 3, 2024), ``factors.skip`` one on x.
    """

    def __init__(
        self,
        norm: nn.Module,
        norm_first: bool,
        dropout: float = 0.0,
        sandwich_norm: nn.Module | None = None,
        scale: float = 1.0,
        factors: ResidualFactors = ResidualFactors(),
    ) -> None:
        super().__init__()
        self.skip, self.init_gain = factors
        self.norm, self.norm_first, self.sandwich_norm = norm, norm_first, sandwich_norm
        self.dropout, self.scale = Dropout(dropout), scale

    @overridable  # in training on a CPU: with norm and sub-layer in one function (kernels.training.mode)
    def forward(
        self, x: Tensor, sublayer: Callable[..., Tensor], pos: Tensor | None = None, *inputs: Any
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); ``inputs`` are what the sub-layer takes after x and pos."""
        branch = self.compute_branch(x, sublayer, pos, *inputs)
        out = x + branch if self.skip == 1 else self.add(x, branch)
        return out if self.norm_first else self.norm(out, pos)

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """``skip`` · x + branch, without x if ``skip`` is 0."""
        return branch if self.skip == 0 else self.skip * x + branch

    def compute_branch(
        self, x: Tensor, sublayer: Callable[..., Tensor], pos: Tensor | None = None, *inputs: Any
    ) -> Tensor:
        """The term added to x: (B, T, C), (B, T) -> (B, T, C)."""
        out = sublayer(self.norm(x, pos) if self.norm_first else x, pos, *inputs)
        dropped: Tensor = self.dropout(out if self.sandwich_norm is None else self.sandwich_norm(out, pos))
        return dropped if self.scale == 1 else self.scale * dropped


@RESIDUAL.register("add")
def add_input(config: ModelSpec, cross: bool) -> ResidualFactors:
    """The input of a sub-layer is added to its output.

    Equation: y = x + F(N(x));  with post-norm N(x + F(x))
    Paper: He et al., 2016; Vaswani et al., 2017, sec. 3.1
    When: the standard
    """
    return ResidualFactors()


@RESIDUAL.register("deepnorm")
def deepnorm(config: ModelSpec, cross: bool) -> ResidualFactors:
    """Post-norm with a factor on the input that grows with depth, and smaller initial weights.

    At first a sub-layer changes its input the less, the deeper the model is, so that post-norm trains with
    hundreds of layers. β is a factor on the initial weights that carry values: ``v_proj``, ``o_proj``, the
    feed-forward layer, convolutions.

    Equation: y = N(α x + F(x)),  W = β W_init
              one stack of N layers: α = (2N)^(1/4),  β = (8N)^(-1/4)
              encoder, with M decoder layers: α = 0.81 (N⁴ M)^(1/16),  β = 0.87 (N⁴ M)^(-1/16)
              its decoder: α = (3M)^(1/4),  β = (12M)^(-1/4)
    Paper: Wang et al., 2022, fig. 2
    When: post-norm with 48 layers and more
    Recipe: model: {residual: deepnorm, n_layers: 48}
    """
    if config.norm_first:
        raise UserError("residual 'deepnorm' is post-norm: it requires norm_first=false")
    if config.kind != "encoder-decoder":
        return ResidualFactors((2 * config.n_layers) ** 0.25, (8 * config.n_layers) ** -0.25)
    if cross:
        return ResidualFactors((3 * config.decoder_layers) ** 0.25, (12 * config.decoder_layers) ** -0.25)
    depth = (config.n_layers**4 * config.decoder_layers) ** (1 / 16)
    return ResidualFactors(0.81 * depth, 0.87 / depth)


@RESIDUAL.register("none")
def no_residual(config: ModelSpec, cross: bool) -> ResidualFactors:
    """No residual connection: the output of a sub-layer replaces its input.

    Equation: y = F(N(x));  with post-norm N(F(x))
    When: to see what the residual connection does; models of many layers hardly learn without it
    """
    return ResidualFactors(skip=0.0)
