"""Position-wise feed-forward layers: one activation between two linear maps, or a gated product of two."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.nn.dropout import Dropout
from polyhead.registry import FEED_FORWARD


class FeedForward(nn.Module):
    """g(x W1 + b1) W2 + b2: the bias is inside the activation (Vaswani et al., 2017, eq. 2)."""

    def __init__(
        self, d_model: int, d_ff: int, activation: Callable[[Tensor], Tensor], bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation, self.dropout = activation, Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        out: Tensor = self.down_proj(self.dropout(self.activation(self.up_proj(x))))
        return out


class GatedFeedForward(nn.Module):
    """(g(x W_gate) * x W_up) W_down: one half decides what the other lets through (Shazeer, 2020, eq. 5)."""

    def __init__(
        self, d_model: int, d_ff: int, activation: Callable[[Tensor], Tensor], bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation, self.dropout = activation, Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        out: Tensor = self.down_proj(self.dropout(self.activation(self.gate_proj(x)) * self.up_proj(x)))
        return out


@FEED_FORWARD.register("relu")
def relu(d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0) -> FeedForward:
    """max(0, x): the feed-forward of the original Transformer (Vaswani et al., 2017)."""
    return FeedForward(d_model, d_ff, torch.relu, bias, dropout)


@FEED_FORWARD.register("leaky_relu")
def leaky_relu(
    d_model: int, d_ff: int, *, slope: float = 0.01, bias: bool = True, dropout: float = 0.0
) -> FeedForward:
    """x where positive, slope * x elsewhere, so that no unit dies (Maas et al., 2013)."""
    return FeedForward(d_model, d_ff, nn.LeakyReLU(slope), bias, dropout)


@FEED_FORWARD.register("prelu")
def prelu(
    d_model: int, d_ff: int, *, slope: float = 0.25, bias: bool = True, dropout: float = 0.0
) -> FeedForward:
    """Leaky ReLU whose slope is learned, one a layer (He et al., 2015)."""
    return FeedForward(d_model, d_ff, nn.PReLU(init=slope), bias, dropout)


@FEED_FORWARD.register("gelu")
def gelu(
    d_model: int, d_ff: int, *, tanh: bool = False, bias: bool = True, dropout: float = 0.0
) -> FeedForward:
    """x times the normal distribution function of x, exact or in the tanh form (Hendrycks & Gimpel, 2016)."""
    return FeedForward(d_model, d_ff, nn.GELU("tanh" if tanh else "none"), bias, dropout)


@FEED_FORWARD.register("silu")
def silu(d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0) -> FeedForward:
    """x * sigmoid(x), also called Swish (Ramachandran et al., 2017)."""
    return FeedForward(d_model, d_ff, F.silu, bias, dropout)


@FEED_FORWARD.register("tanh")
def tanh(d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0) -> FeedForward:
    """The hyperbolic tangent, the saturating activation of earlier networks."""
    return FeedForward(d_model, d_ff, torch.tanh, bias, dropout)


@FEED_FORWARD.register("glu")
def glu(d_model: int, d_ff: int, *, bias: bool = False, dropout: float = 0.0) -> GatedFeedForward:
    """Gated with a sigmoid (Dauphin et al., 2017)."""
    return GatedFeedForward(d_model, d_ff, torch.sigmoid, bias, dropout)


@FEED_FORWARD.register("reglu")
def reglu(d_model: int, d_ff: int, *, bias: bool = False, dropout: float = 0.0) -> GatedFeedForward:
    """Gated with a ReLU (Shazeer, 2020)."""
    return GatedFeedForward(d_model, d_ff, torch.relu, bias, dropout)


@FEED_FORWARD.register("geglu")
def geglu(
    d_model: int, d_ff: int, *, tanh: bool = False, bias: bool = False, dropout: float = 0.0
) -> GatedFeedForward:
    """Gated with a GELU (Shazeer, 2020)."""
    return GatedFeedForward(d_model, d_ff, nn.GELU("tanh" if tanh else "none"), bias, dropout)


@FEED_FORWARD.register("swiglu")
def swiglu(d_model: int, d_ff: int, *, bias: bool = False, dropout: float = 0.0) -> GatedFeedForward:
    """Gated with a SiLU, as in Llama (Shazeer, 2020). For equal parameters give it two thirds of d_ff."""
    return GatedFeedForward(d_model, d_ff, F.silu, bias, dropout)
