"""Residual connections."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from polyhead.nn.dropout import Dropout


class Residual(nn.Module):
    """The one place that knows pre-norm from post-norm: x + F(N(x)) or N(x + F(x)) (Xiong et al., 2020).

    ``after`` is one more norm on what the sub-layer gives, before it is added: with pre-norm the sandwich
    x + N'(F(N(x))) (Ding et al., 2021), and with no norm before it x + N'(F(x)) (Liu et al., 2022). ``scale`` is a factor on
    all that is added (Granite 3, 2024).
    """

    def __init__(
        self,
        norm: nn.Module,
        pre: bool,
        dropout: float = 0.0,
        after: nn.Module | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm, self.pre, self.dropout, self.after = norm, pre, Dropout(dropout), after
        self.scale = scale

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], pos: Tensor | None = None) -> Tensor:
        """(B, T, C), (B, T) -> (B, T, C)."""
        out = x + self.branch(x, sublayer, pos)
        return out if self.pre else self.norm(out, pos)

    def branch(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], pos: Tensor | None = None) -> Tensor:
        """What is added to x alone: (B, T, C), (B, T) -> (B, T, C)."""
        out = sublayer(self.norm(x, pos) if self.pre else x)
        dropped: Tensor = self.dropout(out if self.after is None else self.after(out, pos))
        return dropped if self.scale == 1 else self.scale * dropped
