"""What is known of numbers: while a graph is exported, nothing."""

from __future__ import annotations

import torch
from torch import Tensor


def certain(condition: Tensor) -> bool:
    """Whether a condition on numbers is known to hold; never while a graph is exported, which shall serve any numbers.

    So what is done where it does not hold is right in any case, and what is done where it does is only shorter.
    """
    return not torch.compiler.is_exporting() and bool(condition)
