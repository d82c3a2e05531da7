"""Linear maps with a frozen weight of 4 bits, through which gradients flow to their inputs (QLoRA)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP_BYTES = 17  # 32 numbers of 4 bits and their group scale
_SCALE_BYTES = 4  # the fp32 scale of a row, after its groups


def is_int4(weight: Tensor) -> bool:
    """Whether a weight is packed to 4 bits; ``Int4.to_bytes`` in ``kernels/int_linear.py`` packs it."""
    return weight.dtype == torch.uint8


def unpack_int4(weight: Tensor) -> Tensor:
    """The matrix (N, K) in fp32 of a packed one (N, 17 K / 32 + 4); any other weight as it is."""
    if not is_int4(weight):
        return weight
    groups = weight[:, :-_SCALE_BYTES].unflatten(1, (-1, GROUP_BYTES))
    pairs, group_scales = groups[..., :-1], groups[..., -1:].contiguous().view(torch.int8)
    values = torch.cat((pairs & 15, pairs >> 4), -1).to(torch.int8).sub_(8).mul_(group_scales)
    return values.flatten(1) * weight[:, -_SCALE_BYTES:].contiguous().view(torch.float32)


def count_weights(weight: Tensor) -> int:
    """The number of weights of a matrix, also of a packed one."""
    return weight[:, :-_SCALE_BYTES].numel() // GROUP_BYTES * 32 if is_int4(weight) else weight.numel()


def frozen_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b; a packed W is unpacked in both passes and not kept for the second. (..., K) -> (..., N)."""
    if not is_int4(weight):
        return F.linear(x, weight, bias)
    out: Tensor = _Int4Product.apply(x, weight, bias)
    return out


class Int4Linear(nn.Module):
    """x W^T + b with W in 4 bits, without gradients of both (Dettmers et al., 2023, QLoRA, eq. 5)."""

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, weight: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_parameter("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return frozen_linear(x, self.weight, self.bias)


class _Int4Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, unpack_int4(weight), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0] @ unpack_int4(*ctx.saved_tensors).to(grads[0].dtype), None, None
