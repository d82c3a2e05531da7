"""Types of arrays, and of values that hold some."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@runtime_checkable
class HasToList(Protocol):
    """An array or a tensor."""

    def tolist(self) -> Any:
        """Its numbers as nested lists."""


def is_named_tuple(value: object) -> bool:
    """Whether a value is a tuple with named fields."""
    return isinstance(value, tuple) and hasattr(value, "_fields")
