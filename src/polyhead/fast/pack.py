"""Weights laid out once for the matrix kernels of the CPU: the same numbers, faster, for inference only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polyhead.nn.head import Head

ROWS = 64  # rows of a batch the layout is tuned for; others work as well


def packed(model: nn.Module) -> nn.Module:
    """Put packed layers in the place of every Linear and Head of an evaluated CPU model, and return it.

    Results differ from the plain ones by rounding only (fp32 about 1e-6). The model cannot be trained or saved
    afterwards. Where this build of torch has no such kernels, or the model is on a GPU, nothing is changed.
    """
    weight = next(model.parameters())
    if (
        not can_pack()
        or weight.device.type != "cpu"
        or model.training
        or weight.dtype not in (torch.float32, torch.bfloat16)
    ):
        return model
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(parent, name, PackedLinear(layer.weight, layer.bias))
            elif isinstance(layer, Head):
                setattr(parent, name, PackedHead(layer))
    return model


def can_pack() -> bool:
    """Whether this build of torch has oneDNN's packed linear product."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


class PackedLinear(nn.Module):
    """x W^T + b with W in oneDNN's own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)  # kept: embeddings may be tied to it
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


class PackedHead(Head):
    """A head whose product is packed."""

    def __init__(self, head: Head) -> None:
        product = PackedLinear(head.weight, head.bias)
        super().__init__(product.weight, product.bias, head.scale, head.softcap)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V)."""
        return self.bounded(self.product(self.scaled(x)))
