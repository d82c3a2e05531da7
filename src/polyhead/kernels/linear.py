"""Linear layers with weights packed in the order in which a kernel reads them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polyhead.kernels.build_extension import DTYPE_SUFFIX, load_kernels
from polyhead.kernels.huge_pages import alloc_huge_pages

LinearFactory = Callable[[Tensor, Tensor | None], nn.Module]  # W (N, K), b (N) -> module for x W^T + b

PANEL = 64  # outputs per panel in products.hpp
_ONEDNN_ROWS = 64  # batch rows that oneDNN's layout is tuned for; others work as well


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Build x W^T + b with our kernel, with oneDNN's if ours is not available, or with torch's plain one.

    oneDNN packs bf16 only on processors with instructions for it (AVX-512 or newer).
    """
    is_step_aligned = weight.size(1) * weight.element_size() % 4 == 0
    if is_step_aligned and load_kernels() is not None:
        return NativeLinear(weight, bias)
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return make_plain_linear(weight, bias)
    return PackedLinear(weight, bias)


def make_plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """x W^T + b as torch computes it, without gradients."""
    linear = nn.Linear(weight.size(1), len(weight), bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    linear.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)  # type: ignore[assignment]
    return linear


class NativeLinear(nn.Module):
    """x W^T + b with W (N, K) packed in panels; W itself is not stored."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        kernels, weight = load_kernels(), weight.detach().contiguous()
        assert kernels is not None, "no kernel available"
        self.out_features, self.steps = len(weight), weight.size(1) * weight.element_size() // 4
        self.panels = alloc_huge_pages(-(-self.out_features // PANEL) * PANEL * self.steps)
        kernels.pack(weight.data_ptr(), self.panels.data_ptr(), self.out_features, self.steps)
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.pointers = self.panels.data_ptr(), None if self.bias is None else self.bias.data_ptr()
        self.in_features, self.dtype, self.kernel = (
            weight.size(1),
            weight.dtype,
            getattr(kernels, f"linear_{DTYPE_SUFFIX[weight.dtype]}"),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return self.forward_slice(x, 0, self.out_features)

    def forward_slice(self, x: Tensor, start: int, end: int) -> Tensor:
        """Only the outputs from ``start``, a panel's first, to ``end``: (..., K) -> (..., end - start)."""
        assert x.dtype == self.dtype, f"{x.dtype} for weights in {self.dtype}"
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], end - start))
        panels, bias = self.pointers
        self.kernel(
            x.data_ptr(), panels + start * self.steps * 4, None if bias is None else bias + start * 4,
                out.data_ptr(),
            x.numel() // self.in_features, end - start, self.steps,
        )  # fmt: skip
        return out

    def __deepcopy__(self, memo: object) -> NativeLinear:
        return self  # immutable


class PackedLinear(nn.Module):
    """x W^T + b with W in oneDNN's packed layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed_weight = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().contiguous(), _ONEDNN_ROWS
        )
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed_weight, self.bias, "none", [], "")
        return out
