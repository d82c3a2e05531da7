"""Int8 weights: a quarter of the bytes of fp32, and four products per instruction lane."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.kernels.build_extension import load_kernels
from polyhead.kernels.huge_pages import alloc_huge_pages
from polyhead.kernels.int_linear import make_int_linear, quantize_rows, row_chunks
from polyhead.kernels.linear import PANEL


def make_int8_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Build x W^T + b in integers, W quantized to 8 bits."""
    return make_int_linear(Int8(weight), bias)


class Int8:
    """A matrix (N, K) quantized to integers from -127 to 127, with one scale per row.

    As LLM.int8() (Dettmers et al., 2022, sec. 2.1, vector-wise) without its outlier decomposition.
    """

    dtype = "int8"

    def __init__(self, weight: Tensor) -> None:
        self.values, self.scales = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
        for rows_slice in row_chunks(weight):
            self.values[rows_slice], scale = quantize_rows(weight.detach()[rows_slice].float())
            self.scales[rows_slice] = scale[:, 0]
        self.steps = -(-weight.size(1) // 4)

    def pack_panels(self) -> Tensor:
        """The weights in the layout of the kernel."""
        kernels, (width, inputs) = load_kernels(), self.values.shape
        assert kernels is not None, "no kernel available"
        padded = F.pad(self.values, (0, -inputs % 4)).contiguous()
        panels = alloc_huge_pages(-(-width // PANEL) * PANEL * self.steps)
        kernels.pack(padded.data_ptr(), panels.data_ptr(), width, self.steps)
        return panels
