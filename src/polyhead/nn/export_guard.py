"""Data-dependent conditions are assumed false while a graph is exported."""

from __future__ import annotations

import torch
from torch import Tensor


def known_true(condition: Tensor) -> bool:
    """Whether a data-dependent condition holds; always False during export.

    An exported graph must work for any values. Callers use this only to take a shortcut; the path for False
    must be correct in any case.
    """
    return not torch.compiler.is_exporting() and bool(condition)
