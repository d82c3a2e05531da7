"""Types of part options with their ranges, checked when a recipe is read."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field

from polyhead.core.errors import format_value

NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


def _parse_factor(value: object) -> bool | float:
    """A positive number, or a bool; 1 becomes False."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{format_value(value)} is not a factor: expected a number above 0, true or false")
    return value != 1 and float(value)


Factor = Annotated[bool | float, BeforeValidator(_parse_factor)]


def resolve_factor(value: bool | float, default: float) -> float:
    """The number itself; ``default`` for true; 1 for false."""
    if isinstance(value, bool):
        return default if value else 1.0
    return value
