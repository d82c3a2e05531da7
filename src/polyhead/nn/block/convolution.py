"""Convolutions in place of self-attention, with or without a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.config.model import AttentionShape, ModelSpec
from polyhead.core.errors import UserError
from polyhead.core.option_types import TwoOrMore
from polyhead.core.registry import BLOCK
from polyhead.nn.block.transformer import build_cross_attention, build_residual, reject_self_attention
from polyhead.nn.cache import LayerCache
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.packed_rows import apply_per_document, apply_unpadded
from polyhead.nn.position.base import Position
from polyhead.nn.positions import Positions, has_several_documents
from polyhead.nn.shard_plan import ShardPlan


class ConvBlock(nn.Module):
    """A convolution over neighbouring tokens; in a decoder, followed by attention to the source.

    ``n_maps`` vectors of the model's width are computed for each token; ``activation`` makes one of them.
    """

    shard_plan = ShardPlan(parts=("cross",))
    attn, reads_documents = None, True

    def __init__(
        self,
        config: ModelSpec,
        shape: AttentionShape,
        cross: bool,
        name: str,
        kernel: int,
        n_maps: int,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        reject_self_attention(config, name, cross)
        if kernel % 2 == 0 and not shape.causal:
            raise UserError(
                f"kernel of block {name!r} is {kernel}; in an encoder it is symmetric, so it must be "
                f"odd: {kernel - 1 if kernel > 2 else 3} or {kernel + 1}"
            )
        self.kernel, self.width, self.activation = kernel, config.d_model, activation
        self.left_context = kernel - 1 if shape.causal else kernel // 2  # tokens seen to the left
        # a convolution as a linear layer on concatenated neighbours, which is as fast
        self.conv = nn.Linear(kernel * config.d_model, n_maps * config.d_model)
        self.conv_residual = build_residual(config, cross)
        self.cross = build_cross_attention(config, shape) if cross else None
        if cross:
            self.cross_residual = build_residual(config, cross)

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """The state shapes of a decoding row: its last ``left_context`` tokens."""
        return ((self.left_context, self.width),)

    def project_kv(self, x: Tensor, pos: Tensor | None) -> EncoderMemory:
        """The encoder's output (B, S, C) as this layer reads it at every step."""
        assert self.cross is not None, "only a decoder has a cache"
        return self.cross.project_kv(x, pos)

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: EncoderMemory | None = None,
        position: Position | None = None,
        documents: Positions | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); a convolution needs no ``position``."""
        x = self.conv_residual(x, self.convolve, pos, cache, documents)
        if memory is not None:
            x = self.cross_residual(x, self.cross, pos, None, memory)
        return x

    def convolve(
        self, x: Tensor, pos: Tensor | None, cache: LayerCache | None, documents: Positions | None = None
    ) -> Tensor:
        """(B, T, C) -> (B, T, C); rows are padded with 0 on both ends."""
        if cache is None and pos is not None and has_several_documents(pos, documents):
            return apply_per_document(lambda h, at: self.convolve(h, at.pos, None, at), x, pos, documents)
        if cache is None:
            padding = (0, 0, self.left_context, self.kernel - 1 - self.left_context)
            return apply_unpadded(lambda h: self.apply_conv(F.pad(h, padding)), x, pos)
        assert pos is not None, "a step requires positions"
        count = (pos >= 0).sum(1, keepdim=True)

        def step(tokens: Tensor) -> Tensor:
            context = torch.cat([cache.state[0].to(tokens.dtype), tokens], 1)
            last = count + torch.arange(self.left_context, device=context.device)
            cache.state = (context[torch.arange(len(context), device=context.device)[:, None], last],)
            return self.apply_conv(context)

        return apply_unpadded(step, x, pos)

    def apply_conv(self, x: Tensor) -> Tensor:
        """(B, T + kernel - 1, C) -> (B, T, C): the activation of W x + w, x a window."""
        length = x.size(1) - self.kernel + 1
        windows = torch.cat([x[:, i : i + length] for i in range(self.kernel)], -1)
        return self.activation(self.conv(windows))


def identity(x: Tensor) -> Tensor:
    """x."""
    return x


ConvActivation = Literal["relu", "gelu", "tanh", "none"]
_ACTIVATIONS: dict[ConvActivation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "none": identity,
}


@BLOCK.register("conv")
def conv_block(
    config: ModelSpec,
    shape: AttentionShape,
    position: Position,
    cross: bool,
    *,
    kernel: TwoOrMore = 3,
    activation: ConvActivation = "relu",
) -> ConvBlock:
    """A convolution over neighbouring tokens, without a gate: each output depends on a window of inputs.

    An encoder layer sees as many tokens to the left as to the right, a decoder layer the token and those
    before it, so N layers see 1 + N (kernel - 1) tokens. Every decoder layer attends to the source. No
    self-attention, no feed-forward layer.

    Equation: y_t = N(x_t + g(W [x_{t-m} ... x_{t+n}] + w)),  0 beyond the ends of the row
              encoder: m = n = (kernel - 1) / 2;  decoder: m = kernel - 1, n = 0
    Paper: Waibel et al., 1989; of words Collobert & Weston, 2008
    When: as a baseline of the gate, and for the cost of a convolution
    Recipe: model: {block: {name: conv, kernel: 5}, position: learned}
    Options:
      kernel: tokens that a layer sees, the token itself included; odd in an encoder
      activation: g
    """
    return ConvBlock(config, shape, cross, "conv", kernel, 1, _ACTIVATIONS[activation])


def gate(x: Tensor) -> Tensor:
    """a ⊙ σ(b) of [a; b]: (..., 2C) -> (..., C)."""
    return F.glu(x, -1)


@BLOCK.register("gated_conv")
def gated_conv_block(
    config: ModelSpec, shape: AttentionShape, position: Position, cross: bool, *, kernel: TwoOrMore = 3
) -> ConvBlock:
    """A gated convolution over neighbouring tokens; in a decoder, followed by attention to the source.

    An encoder layer sees as many tokens to the left as to the right, a decoder layer the token and those
    before it, so N layers see 1 + N (kernel - 1) tokens. Every decoder layer attends to the source. No
    self-attention, no feed-forward layer. Norm and residual are those of this package, in place of weight
    norm and factors √½.

    Equation: y_t = N(x_t + a ⊙ σ(b)),  [a; b] = W [x_{t-m} ... x_{t+n}] + w,  0 beyond the ends of the row
              encoder: m = n = (kernel - 1) / 2;  decoder: m = kernel - 1, n = 0
    Paper: Gehring et al., 2017, sec. 3.2-3.3; the gate: Dauphin et al., 2017
    When: as a baseline; most information is in nearby tokens
    Recipe: model: {block: {name: gated_conv, kernel: 5}, position: learned}
    Options:
      kernel: tokens that a layer sees, the token itself included; odd in an encoder
    """
    return ConvBlock(config, shape, cross, "gated_conv", kernel, 2, gate)
