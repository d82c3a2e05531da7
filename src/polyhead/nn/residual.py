"""Residual connections."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from polyhead.nn.dropout import Dropout


class Residual(nn.Module):
    """The one place that knows pre-norm from post-norm: x + F(N(x)) or N(x + F(x)) (Xiong et al., 2020)."""

    def __init__(self, norm: nn.Module, pre: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.pre, self.dropout = norm, pre, Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        out: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return out
