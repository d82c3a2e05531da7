"""Low-rank adapters on frozen linear maps (Hu et al., 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.nn.dropout import Dropout
from polyhead.nn.int4_linear import Int4Linear, frozen_linear, is_int4, unpack_int4
from polyhead.nn.override import replace_children

LORA_A, LORA_B = "lora_a", "lora_b"


class LoraLinear(nn.Module):
    """y = W x + b + (alpha / rank) B A x (Hu et al., 2021, eq. 3), in place of the Linear with W and b.

    A is random and B is 0, so the output is unchanged before training. W and b keep their parameter names, so
    that code that looks up weights by name still works. W may be packed to 4 bits.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        linear: nn.Linear | Int4Linear,
        rank: int,
        *,
        alpha: float,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        # the init of nn.Linear, also used for A in the paper's code
        bound = 1 / math.sqrt(linear.in_features)
        init_a = torch.empty(rank, linear.in_features).uniform_(-bound, bound, generator=generator)
        dtype = torch.float32 if is_int4(self.weight) else self.weight.dtype
        self.lora_a = nn.Parameter(init_a.to(self.weight.device, dtype))  # (rank, in)
        self.lora_b = nn.Parameter(self.lora_a.new_zeros(linear.out_features, rank))
        self.dropout = Dropout(dropout)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        low = self.scale * F.linear(self.dropout(x), self.lora_a)
        return frozen_linear(x, self.weight, self.bias) + F.linear(low, self.lora_b)

    def extra_repr(self) -> str:
        return f"rank={len(self.lora_a)}, scale={self.scale:g}"


@torch.no_grad()
def merge_lora(model: nn.Module) -> None:
    """Merge the adapters of a model into its weights, replacing them by Linears; outputs are unchanged.

    Weights in 4 bits become fp32.
    """

    def merge(part: LoraLinear | Int4Linear) -> nn.Module:
        weight = unpack_int4(part.weight)
        if isinstance(part, LoraLinear):
            weight += _lora_delta(part.lora_a, part.lora_b, part.scale)
        return _to_linear(weight, part.bias)

    parts = (part for part in model.modules() if isinstance(part, LoraLinear | Int4Linear))
    replace_children(model, {part: merge(part) for part in parts})


def merge_lora_tensors(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The state dict of an adapted model with the adapters merged into the weights and removed."""
    merged = {
        name: unpack_int4(tensor)
        for name, tensor in tensors.items()
        if not name.endswith((f".{LORA_A}", f".{LORA_B}"))
    }
    for name in tensors:
        if name.endswith(f".{LORA_A}"):
            prefix = name.removesuffix(LORA_A)
            delta = _lora_delta(tensors[name], tensors[f"{prefix}{LORA_B}"], scale)
            merged[f"{prefix}weight"] = merged[f"{prefix}weight"] + delta
    return merged


def _lora_delta(a: Tensor, b: Tensor, scale: float) -> Tensor:
    return scale * (b @ a)


def _to_linear(weight: Tensor, bias: nn.Parameter | None) -> nn.Linear:
    """The Linear with these weights."""
    linear = nn.Linear(weight.size(1), len(weight), bias=bias is not None, device="meta")
    linear.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    linear.register_parameter("bias", bias)
    return linear
