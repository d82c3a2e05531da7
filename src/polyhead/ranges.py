"""What numbers a part takes: the types of its options, checked when a recipe is read."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
AtLeast0 = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]


def _plain(value: bool | float) -> bool | float:
    """A factor of 1 is none, and Python takes 1 for true."""
    return value if isinstance(value, bool) else value != 1 and value


Factor = Annotated[bool | Above0, AfterValidator(_plain)]


def factor_of(given: bool | float, usual: float) -> float:
    """A number itself, the usual one for true, 1 for false."""
    if isinstance(given, bool):
        return usual if given else 1.0
    return given
