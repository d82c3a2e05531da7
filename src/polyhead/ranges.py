"""What numbers a part takes: the types of its options, checked when a recipe is read."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field

from polyhead.errors import show

Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
AtLeast0 = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]


def _factor(given: object) -> bool | float:
    """A factor of 1 is none."""
    if isinstance(given, bool):
        return given
    if not isinstance(given, int | float) or not 0 < given < math.inf:
        raise ValueError(f"{show(given)} is no factor: give a number above 0, true or false")
    return given != 1 and float(given)


Factor = Annotated[bool | float, BeforeValidator(_factor)]


def factor_of(given: bool | float, usual: float) -> float:
    """A number itself, the usual one for true, 1 for false."""
    if isinstance(given, bool):
        return usual if given else 1.0
    return given
