"""Linear layers whose weights lie in the order in which a kernel reads them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polyhead.fast.large_pages import in_large_pages
from polyhead.fast.native import SUFFIX, kernels

Product = Callable[[Tensor, Tensor | None], nn.Module]  # makes x W^T + b of W (N, K) and b (N)

PANEL = 64  # outputs that lie together in products.hpp
ROWS = 64  # rows of a batch oneDNN's layout is tuned for; others work as well


def product(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """x W^T + b by our kernel, or by oneDNN's where ours cannot be had."""
    fits = weight.size(1) * weight.element_size() % 4 == 0
    return NativeLinear(weight, bias) if fits and kernels() is not None else PackedLinear(weight, bias)


class NativeLinear(nn.Module):
    """x W^T + b with W in panels, (N, K) weights in all; W itself is not kept."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        found, weight = kernels(), weight.detach().contiguous()
        assert found is not None, "there is no kernel"
        self.width, self.steps = len(weight), weight.size(1) * weight.element_size() // 4
        self.panels = in_large_pages(-(-self.width // PANEL) * PANEL * self.steps)
        found.pack(weight.data_ptr(), self.panels.data_ptr(), self.width, self.steps)
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.at = self.panels.data_ptr(), None if self.bias is None else self.bias.data_ptr()
        self.inputs, self.dtype, self.run = (
            weight.size(1),
            weight.dtype,
            getattr(found, f"linear_{SUFFIX[weight.dtype]}"),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return self.part(x, 0, self.width)

    def part(self, x: Tensor, first: int, end: int) -> Tensor:
        """Only outputs from ``first``, the beginning of a panel, to ``end``: (..., K) -> (..., end - first)."""
        assert x.dtype == self.dtype, f"{x.dtype} for weights in {self.dtype}"
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], end - first))
        panels, bias = self.at
        self.run(
            x.data_ptr(), panels + first * self.steps * 4, None if bias is None else bias + first * 4, out.data_ptr(),
            x.numel() // self.inputs, end - first, self.steps,
        )  # fmt: skip
        return out

    def __deepcopy__(self, memo: object) -> NativeLinear:
        return self  # it never changes


class PackedLinear(nn.Module):
    """x W^T + b with W in oneDNN's own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out
