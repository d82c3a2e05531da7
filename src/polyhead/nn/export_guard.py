"""Data-dependent conditions: assumed false in a graph and on devices whose numbers are slow to read."""

from __future__ import annotations

import torch
from torch import Tensor


def is_traced() -> bool:
    """Whether a graph is being compiled or exported, which must work for any numbers."""
    return torch.compiler.is_compiling() or torch.compiler.is_exporting()


def known_true(condition: Tensor) -> bool:
    """Whether a data-dependent condition is known to hold: only on the CPU, and outside of graphs.

    Reading a number of another device waits for all its work. Callers use this only to take a shortcut; the
    path for False must be correct in any case.
    """
    is_traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    return not is_traced and condition.device.type == "cpu" and bool(condition)
