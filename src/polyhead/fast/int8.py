"""Linear layers whose products are of whole numbers of 8 bits: a quarter of the bytes of fp32, and four products at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.fast.large_pages import in_large_pages
from polyhead.fast.linear import PANEL
from polyhead.fast.native import SUFFIX, kernels

MOST = 127  # the greatest whole number; -128 is not used, so that there are as many below 0 as above


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (..., K) as whole numbers from -127 to 127, and the size (..., 1) of 1: x is about their product."""
    size = x.abs().amax(-1, keepdim=True) / MOST
    return (x / size).nan_to_num().round().to(torch.int8), size


def int8_product(weight: Tensor, bias: Tensor | None) -> Int8Linear | PlainInt8Linear:
    """x W^T + b in whole numbers, by our kernel where it can be had."""
    return PlainInt8Linear(weight, bias) if kernels() is None else Int8Linear(weight, bias)


class Int8Linear(nn.Module):
    """x W^T + b with W rounded to 8 bits, each output's row to a size of its own, and so each row of x when it comes.

    As LLM.int8() (Dettmers et al., 2022, sec. 2.1, vector-wise) without its exceptions. Sums of products are exact, and
    sizes and bias are fp32. An x that is not finite gives NaN.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        found = kernels()
        assert found is not None, "there is no kernel"
        self.width, self.inputs = weight.shape
        whole, size = rounded(weight.detach().float())
        panels = -(-self.width // PANEL) * PANEL
        self.sizes = F.pad(size[:, 0], (0, panels - self.width))
        self.offsets = F.pad(128 * whole.sum(1, dtype=torch.int32), (0, panels - self.width))
        whole = F.pad(whole, (0, -self.inputs % 4)).contiguous()
        self.steps = whole.size(1) // 4
        self.panels = in_large_pages(panels * self.steps)
        found.pack(whole.data_ptr(), self.panels.data_ptr(), self.width, self.steps)
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        self.at = (
            self.panels.data_ptr(),
            self.sizes.data_ptr(),
            self.offsets.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
        )
        self.run = {dtype: getattr(found, f"linear_int8_{suffix}") for dtype, suffix in SUFFIX.items()}

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return self.part(x, 0, self.width)

    def part(self, x: Tensor, first: int, end: int) -> Tensor:
        """Only outputs from ``first``, the beginning of a panel, to ``end``: (..., K) -> (..., end - first)."""
        x = x.contiguous()
        out = x.new_empty((*x.shape[:-1], end - first))
        panels, sizes, offsets, bias = self.at
        self.run[x.dtype](
            x.data_ptr(), panels + first * self.steps * 4, sizes + first * 4, offsets + first * 4,
            None if bias is None else bias + first * 4, out.data_ptr(), x.numel() // self.inputs, end - first, self.inputs,
        )  # fmt: skip
        return out

    def __deepcopy__(self, memo: object) -> Int8Linear:
        return self  # it never changes


class PlainInt8Linear(nn.Module):
    """The same by torch's product of whole numbers."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        whole, size = rounded(weight.detach().float())
        # a copy in any case: of one input the strides would be (1, 1), and torch then multiplies other numbers
        self.weight, self.sizes = whole.T.clone(memory_format=torch.contiguous_format), size[:, 0]
        self.bias = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        whole, size = rounded(x.float().flatten(0, -2))
        sums = torch._int_mm(whole, self.weight) * (size * self.sizes)
        out = sums if self.bias is None else sums + self.bias
        return out.view(*x.shape[:-1], -1).to(x.dtype)
