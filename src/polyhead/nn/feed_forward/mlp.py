"""Feed-forward layers with one activation, plain or gated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.core.registry import FEED_FORWARD
from polyhead.nn.dropout import Dropout
from polyhead.nn.shard_plan import ShardPlan

GateBias = bool | Literal["down"]
"""Which maps of a gated layer have a bias: all three, none, or only the down projection."""
SwishBeta = float | Literal["learned"]
"""The factor β of x σ(βx): a number, or a parameter that is initially 1."""


class FeedForward(nn.Module):
    """g(x W1 + b1) W2 + b2: the bias is inside the activation (Vaswani et al., 2017, eq. 2)."""

    shard_plan = ShardPlan(colwise=("up_proj",), rowwise=("down_proj",), partial_grads=("activation",))

    def __init__(
        self, d_model: int, d_ff: int, activation: Callable[[Tensor], Tensor], bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation, self.dropout = activation, Dropout(dropout)

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        out: Tensor = self.down_proj(self.dropout(self.activation(self.up_proj(x))))
        return out


class GatedFeedForward(nn.Module):
    """(g(x W_gate) * x W_up) W_down: a gated product of two maps (Shazeer, 2020, eq. 5)."""

    shard_plan = ShardPlan(
        colwise=("gate_proj", "up_proj"), rowwise=("down_proj",), partial_grads=("activation",)
    )

    def __init__(
        self, d_model: int, d_ff: int, activation: Callable[[Tensor], Tensor], bias: GateBias, dropout: float
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias is True)
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias is True)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bool(bias))
        self.activation, self.dropout = activation, Dropout(dropout)

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        out: Tensor = self.down_proj(self.dropout(self.activation(self.gate_proj(x)) * self.up_proj(x)))
        return out


@FEED_FORWARD.register("relu")
def relu_mlp(d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0) -> FeedForward:
    """Negative inputs become 0: the feed-forward of the original Transformer.

    Equation: g(x) = max(0, x)
    Paper: Vaswani et al., 2017, eq. 2
    When: the default and the cheapest; a unit that is never positive stops learning
    """
    return FeedForward(d_model, d_ff, torch.relu, bias, dropout)


def relu_squared(x: Tensor) -> Tensor:
    """max(0, x)²."""
    return torch.relu(x).square()


@FEED_FORWARD.register("relu2")
def relu2_mlp(d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0) -> FeedForward:
    """The square of a ReLU, which amplifies large activations.

    Found by an architecture search for language models that train faster, as one of its two most effective
    changes.

    Equation: g(x) = max(0, x)²
    Paper: So et al., 2021, sec. 3 (Primer)
    When: language models, in place of a gate, which costs a third matrix
    """
    return FeedForward(d_model, d_ff, relu_squared, bias, dropout)


@FEED_FORWARD.register("leaky_relu")
def leaky_relu_mlp(
    d_model: int, d_ff: int, *, slope: float = 0.01, bias: bool = True, dropout: float = 0.0
) -> FeedForward:
    """A ReLU with a small slope for negative inputs, so that no unit dies.

    Equation: g(x) = x where x > 0, slope · x elsewhere
    Paper: Maas et al., 2013
    When: ReLU leaves many units dead
    Options:
      slope: slope below 0
    """
    return FeedForward(d_model, d_ff, nn.LeakyReLU(slope), bias, dropout)


class ChannelPReLU(nn.PReLU):
    """PReLU with a slope for each feature; that of PyTorch expects features before the tokens."""

    shard_plan = ShardPlan(shard_dims={"weight": 0})

    def forward(self, x: Tensor) -> Tensor:
        """(..., F) -> (..., F)."""
        return torch.where(x > 0, x, self.weight * x)


@FEED_FORWARD.register("prelu")
def prelu_mlp(
    d_model: int,
    d_ff: int,
    *,
    slope: float = 0.25,
    per_channel: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> FeedForward:
    """A leaky ReLU whose slope is learned, one per layer or one per inner unit.

    Equation: g(x_i) = x_i where x_i > 0, a_i x_i elsewhere;  a_i = a unless per_channel
    Paper: He et al., 2015, eq. 1: channel-shared and channel-wise
    When: as leaky_relu, with a learned slope
    Recipe: model: {feed_forward: {name: prelu, per_channel: true}}
    Options:
      slope: initial slope below 0
      per_channel: a slope for each of the d_ff inner units instead of one for the layer
    """
    activation = ChannelPReLU(d_ff, slope) if per_channel else nn.PReLU(init=slope)
    return FeedForward(d_model, d_ff, activation, bias, dropout)


@FEED_FORWARD.register("gelu")
def gelu_mlp(
    d_model: int, d_ff: int, *, tanh: bool = False, bias: bool = True, dropout: float = 0.0
) -> FeedForward:
    """x times the probability that a normal variable is below x: a smooth ReLU.

    Equation: g(x) = x Φ(x);  tanh form: x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))
    Paper: Hendrycks & Gimpel, 2016
    When: to match BERT (exact) or GPT-2 (tanh form)
    Options:
      tanh: use the tanh form instead of the exact one
    """
    return FeedForward(d_model, d_ff, nn.GELU("tanh" if tanh else "none"), bias, dropout)


@FEED_FORWARD.register("silu")
def silu_mlp(d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0) -> FeedForward:
    """x times its logistic: a smooth ReLU, also called Swish.

    Equation: g(x) = x σ(x)
    Paper: Ramachandran et al., 2017
    When: a smooth activation that is cheaper than GELU
    """
    return FeedForward(d_model, d_ff, F.silu, bias, dropout)


@FEED_FORWARD.register("tanh")
def tanh_mlp(d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0) -> FeedForward:
    """The hyperbolic tangent, which saturates on both sides.

    Equation: g(x) = tanh x
    When: for comparison with the activation of earlier networks
    """
    return FeedForward(d_model, d_ff, torch.tanh, bias, dropout)


@FEED_FORWARD.register("sigmoid")
def sigmoid_mlp(d_model: int, d_ff: int, *, bias: bool = True, dropout: float = 0.0) -> FeedForward:
    """The logistic function, which maps every number to one between 0 and 1.

    Equation: g(x) = σ(x) = 1 / (1 + e^-x)
    When: for comparison with the activation of earlier networks; its gradient is at most a quarter
    """
    return FeedForward(d_model, d_ff, torch.sigmoid, bias, dropout)


@FEED_FORWARD.register("glu")
def glu_mlp(d_model: int, d_ff: int, *, bias: GateBias = False, dropout: float = 0.0) -> GatedFeedForward:
    """A gate with the logistic function.

    Equation: g(x) = σ(x)
    Paper: Dauphin et al., 2017
    When: for comparison with later gates
    Options:
      bias: biases in the three maps, or only in the down projection (down, as in GTE)
    """
    return GatedFeedForward(d_model, d_ff, torch.sigmoid, bias, dropout)


@FEED_FORWARD.register("reglu")
def reglu_mlp(d_model: int, d_ff: int, *, bias: GateBias = False, dropout: float = 0.0) -> GatedFeedForward:
    """A gate with a ReLU.

    Equation: g(x) = max(0, x)
    Paper: Shazeer, 2020
    When: the cheapest gate
    Options:
      bias: biases in the three maps, or only in the down projection (down, as in GTE)
    """
    return GatedFeedForward(d_model, d_ff, torch.relu, bias, dropout)


@FEED_FORWARD.register("geglu")
def geglu_mlp(
    d_model: int, d_ff: int, *, tanh: bool = False, bias: GateBias = False, dropout: float = 0.0
) -> GatedFeedForward:
    """A gate with a GELU.

    Equation: g(x) = x Φ(x), or its tanh form
    Paper: Shazeer, 2020
    When: quality per parameter matters more than step time, as in T5 1.1
    Options:
      tanh: use the tanh form of GELU instead of the exact one
      bias: biases in the three maps, or only in the down projection (down, as in GTE)
    """
    return GatedFeedForward(d_model, d_ff, nn.GELU("tanh" if tanh else "none"), bias, dropout)


class Swish(nn.Module):
    """x σ(βx) with a constant or a learned β (Ramachandran et al., 2017)."""

    def __init__(self, beta: SwishBeta) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1)) if beta == "learned" else beta

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return x * torch.sigmoid(self.beta * x)


@FEED_FORWARD.register("swiglu")
def swiglu_mlp(
    d_model: int, d_ff: int, *, beta: SwishBeta = 1.0, bias: GateBias = False, dropout: float = 0.0
) -> GatedFeedForward:
    """A gate with a Swish, by default with β = 1: a SiLU, as in Llama.

    At β = 0 the gate is linear, x/2, and for a large β it is a ReLU.

    Equation: g(x) = Swish_β(x) = x σ(βx)
    Paper: Shazeer, 2020, eq. 6; Swish: Ramachandran et al., 2017
    When: quality per parameter matters more than step time
    Recipe: model: {feed_forward: swiglu, d_model: 256, d_ff: 684}  # two thirds of 4 x 256, a multiple of 4
    Options:
      beta: β, a number; or learned: one per layer, initially 1
      bias: biases in the three maps, or only in the down projection (down, as in GTE)
    """
    return GatedFeedForward(d_model, d_ff, F.silu if beta == 1 else Swish(beta), bias, dropout)


MLPActivation = Literal["relu", "leaky_relu", "prelu", "gelu", "gelu_tanh", "silu", "tanh"]
MLP_ACTIVATIONS: dict[MLPActivation, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


@FEED_FORWARD.register("conv1x1")
class ConvFeedForward(nn.Module):
    """Two convolutions of width 1 with an activation between them, equivalent to the plain layer.

    Equal weights give equal outputs; only the layout, (B, C, T), and the speed differ.

    Equation: K₂ * g(K₁ * x + b₁) + b₂,  K₁ (d_ff, C, 1) and K₂ (C, d_ff, 1) kernels along the text
    Paper: Vaswani et al., 2017, sec. 3.3
    When: to demonstrate that both are the same
    Recipe: model: {feed_forward: {name: conv1x1, activation: gelu}}
    Options:
      activation: g, as in the part of that name with its own defaults
    """

    shard_plan = ShardPlan(colwise=("up_proj",), rowwise=("down_proj",), partial_grads=("activation",))

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: MLPActivation = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up_proj = nn.Conv1d(d_model, d_ff, 1, bias=bias)
        self.down_proj = nn.Conv1d(d_ff, d_model, 1, bias=bias)
        self.activation, self.dropout = MLP_ACTIVATIONS[activation](), Dropout(dropout)

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        out: Tensor = self.down_proj(self.dropout(self.activation(self.up_proj(x.mT))))
        return out.mT
