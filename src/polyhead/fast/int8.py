"""Weights of whole numbers of 8 bits: a quarter of the bytes of fp32, and four products at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.fast.large_pages import in_large_pages
from polyhead.fast.linear import PANEL
from polyhead.fast.native import kernels
from polyhead.fast.whole import rounded, some_rows, whole_product


def int8_product(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """x W^T + b in whole numbers, W rounded to 8 bits."""
    return whole_product(Int8(weight), bias)


class Int8:
    """A matrix (N, K) rounded to whole numbers from -127 to 127, each row to a size of its own.

    As LLM.int8() (Dettmers et al., 2022, sec. 2.1, vector-wise) without its exceptions.
    """

    dtype = "int8"

    def __init__(self, weight: Tensor) -> None:
        self.numbers, self.sizes = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
        for few in some_rows(weight):
            self.numbers[few], size = rounded(weight.detach()[few].float())
            self.sizes[few] = size[:, 0]
        self.steps = -(-weight.size(1) // 4)

    def panels(self) -> Tensor:
        """What the kernel reads."""
        found, (width, inputs) = kernels(), self.numbers.shape
        assert found is not None, "there is no kernel"
        whole = F.pad(self.numbers, (0, -inputs % 4)).contiguous()
        panels = in_large_pages(-(-width // PANEL) * PANEL * self.steps)
        found.pack(whole.data_ptr(), panels.data_ptr(), width, self.steps)
        return panels
