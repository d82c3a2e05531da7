"""Low-rank adapters: a small learned change beside a linear map that stays as it is (Hu et al., 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.nn.dropout import Dropout

A, B = "adapter_a", "adapter_b"


class Adapter(nn.Module):
    """y = W x + b + (alpha / rank) B A x (Hu et al., 2021, eq. 3), in the place of the Linear that has W and b.

    A is drawn and B is 0, so that nothing is changed until B has learned. W and b keep their names, so all that knows
    weights by name finds them.
    """

    bias: nn.Parameter | None

    def __init__(
        self, linear: nn.Linear, rank: int, *, alpha: float, dropout: float, bits: torch.Generator
    ) -> None:
        super().__init__()
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        # as a Linear is begun, and as the paper's own code begins A
        bound = 1 / math.sqrt(linear.in_features)
        drawn = torch.empty(rank, linear.in_features).uniform_(-bound, bound, generator=bits)
        self.adapter_a = nn.Parameter(drawn.to(self.weight))  # (rank, in)
        self.adapter_b = nn.Parameter(self.weight.new_zeros(linear.out_features, rank))
        self.dropout = Dropout(dropout)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        low = self.scale * F.linear(self.dropout(x), self.adapter_a)
        return F.linear(x, self.weight, self.bias) + F.linear(low, self.adapter_b)

    def extra_repr(self) -> str:
        return f"rank={len(self.adapter_a)}, scale={self.scale:g}"


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Add what the adapters of a model have learned to its weights: it is of Linears again, and gives the same."""
    made: dict[int, nn.Linear] = {}  # tied projections are one module under several names
    for parent in list(model.modules()):
        for name, part in list(parent._modules.items()):
            if isinstance(part, Adapter):
                if id(part) not in made:
                    part.weight += _change(part.adapter_a, part.adapter_b, part.scale)
                    made[id(part)] = _linear(part)
                setattr(parent, name, made[id(part)])


def merged(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights of an adapted model by name, with the changes added and the adapters gone."""
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith((f".{A}", f".{B}"))}
    for name in tensors:
        if name.endswith(f".{A}"):
            of = name.removesuffix(A)
            found[f"{of}weight"] = tensors[f"{of}weight"] + _change(tensors[name], tensors[f"{of}{B}"], scale)
    return found


def _change(a: Tensor, b: Tensor, scale: float) -> Tensor:
    return scale * (b @ a)


def _linear(part: Adapter) -> nn.Linear:
    """The Linear that holds the same weights."""
    rows, columns = part.weight.shape
    linear = nn.Linear(columns, rows, bias=part.bias is not None, device="meta")
    linear.weight = part.weight
    linear.register_parameter("bias", part.bias)
    return linear
