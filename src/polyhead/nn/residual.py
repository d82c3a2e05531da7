"""Residual connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from polyhead.nn.dropout import Dropout
from polyhead.nn.override import overridable


class Residual(nn.Module):
    """Residual connection, pre-norm or post-norm: x + F(N(x)) or N(x + F(x)) (Xiong et al., 2020).

    ``sandwich_norm`` is an additional norm on the sub-layer's output: x + N'(F(N(x))) with pre-norm (Ding et
    al., 2021), and x + N'(F(x)) without a norm before it (Liu et al., 2022). ``scale`` is a factor on the
    branch (Granite 3, 2024).
    """

    def __init__(
        self,
        norm: nn.Module,
        norm_first: bool,
        dropout: float = 0.0,
        sandwich_norm: nn.Module | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm, self.norm_first, self.sandwich_norm = norm, norm_first, sandwich_norm
        self.dropout, self.scale = Dropout(dropout), scale

    @overridable  # in training on a CPU: with norm and sub-layer in one function (kernels.training.mode)
    def forward(
        self, x: Tensor, sublayer: Callable[..., Tensor], pos: Tensor | None = None, *inputs: Any
    ) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C); ``inputs`` are what the sub-layer takes after x and pos."""
        out = x + self.compute_branch(x, sublayer, pos, *inputs)
        return out if self.norm_first else self.norm(out, pos)

    def compute_branch(
        self, x: Tensor, sublayer: Callable[..., Tensor], pos: Tensor | None = None, *inputs: Any
    ) -> Tensor:
        """The term added to x: (B, T, C), (B, T) -> (B, T, C)."""
        out = sublayer(self.norm(x, pos) if self.norm_first else x, pos, *inputs)
        dropped: Tensor = self.dropout(out if self.sandwich_norm is None else self.sandwich_norm(out, pos))
        return dropped if self.scale == 1 else self.scale * dropped
