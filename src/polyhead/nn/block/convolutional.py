"""Gated convolutions in the place of self-attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.cache.base import LayerCache
from polyhead.config import ModelSection, Shape
from polyhead.errors import UserError
from polyhead.nn.block.sublayers import cross_attention, refuse_self_attention, residual
from polyhead.nn.kv import Memory
from polyhead.nn.position.base import Position
from polyhead.nn.rows import documents_apart, several_documents, without_padding
from polyhead.registry import BLOCK


@BLOCK.register("conv")
class Convolutional(nn.Module):
    """A convolution with a gate over the tokens around; in a decoder, attention to the source after it.

    It sees as many tokens to the left as to the right in an encoder, the token and those before it in a decoder, so N
    layers see 1 + N (kernel - 1) tokens. Every layer of a decoder attends. No self-attention, no feed-forward layer.
    Norm and residual are the project's, in place of weight norm and factors √½.

    Equation: y_t = N(x_t + a ⊙ σ(b)),  [a; b] = W [x_{t-m} ... x_{t+n}] + w,  0 beyond the ends of the row
              encoder: m = n = (kernel - 1) / 2;  decoder: m = kernel - 1, n = 0
    Paper: Gehring et al., 2017, sec. 3.2-3.3; the gate: Dauphin et al., 2017
    When: as a baseline; near tokens tell most of what there is to know
    Recipe: model: {block: {name: conv, kernel: 5}, position: learned}
    Options:
      kernel: tokens that a layer sees, the token itself included; odd in an encoder
    """

    def __init__(
        self, config: ModelSection, shape: Shape, position: Position, cross: bool, *, kernel: int = 3
    ) -> None:
        super().__init__()
        refuse_self_attention(config, "conv", cross)
        if kernel < 2:
            raise UserError(
                f"kernel of block 'conv' is {kernel}; it counts the token itself, so 2 is the least"
            )
        if kernel % 2 == 0 and not shape.causal:
            raise UserError(
                f"kernel of block 'conv' is {kernel}; an encoder sees as much on either side, so it is odd: "
                f"{kernel - 1 if kernel > 2 else 3} or {kernel + 1}"
            )
        self.kernel, self.width = kernel, config.d_model
        self.before = kernel - 1 if shape.causal else kernel // 2  # tokens seen to the left
        # a convolution is a linear layer on neighbours side by side, and as fast that way
        self.conv, self.conv_residual = (
            nn.Linear(kernel * config.d_model, 2 * config.d_model),
            residual(config),
        )
        self.cross = cross_attention(config, shape) if cross else None
        if cross:
            self.cross_residual = residual(config)

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of what a decoding row keeps: the last tokens, as many as a kernel looks back."""
        return ((self.before, self.width),)

    def remember(self, x: Tensor, pos: Tensor | None) -> Memory:
        """The encoder's output (B, S, C) as this layer will read it at every step."""
        assert self.cross is not None, "only a decoder remembers"
        memory: Memory = self.cross.remember(x, pos)
        return memory

    def forward(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        cache: LayerCache | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        x = self.conv_residual(x, lambda h: self.convolve(h, pos, cache), pos)
        if memory is not None:
            cross = self.cross
            assert cross is not None
            x = self.cross_residual(x, lambda h: cross(h, pos, memory=memory), pos)
        return x

    def convolve(self, x: Tensor, pos: Tensor | None, cache: LayerCache | None) -> Tensor:
        """(B, T, C) -> (B, T, C); beyond the ends of a row there is 0."""
        if cache is None and pos is not None and several_documents(pos):
            return documents_apart(lambda h, at: self.convolve(h, at, None), x, pos)
        if cache is None:
            around = (0, 0, self.before, self.kernel - 1 - self.before)
            return without_padding(lambda h: self.gated(F.pad(h, around)), x, pos)
        assert pos is not None, "a step says where it is"
        count = (pos >= 0).sum(1, keepdim=True)

        def step(new: Tensor) -> Tensor:
            seen = torch.cat([cache.state[0].to(new.dtype), new], 1)
            last = count + torch.arange(self.before, device=seen.device)
            cache.state = (seen[torch.arange(len(seen), device=seen.device)[:, None], last],)
            return self.gated(seen)

        return without_padding(step, x, pos)

    def gated(self, x: Tensor) -> Tensor:
        """(B, T + kernel - 1, C) -> (B, T, C): W x * sigmoid(V x) of each window (Dauphin et al., 2017)."""
        length = x.size(1) - self.kernel + 1
        windows = torch.cat([x[:, i : i + length] for i in range(self.kernel)], -1)
        return F.glu(self.conv(windows), -1)
