"""Types of part options with their ranges, checked when a recipe is read and when a part is built."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from polyhead.core.errors import UserError, format_value

NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
TwoOrMore = Annotated[int, Field(ge=2)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
DropoutRate = Annotated[float, Field(ge=0, lt=1)]
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


_run_directory: ContextVar[Path | None] = ContextVar("run_directory", default=None)


@contextmanager
def read_run_settings(directory: Path) -> Iterator[None]:
    """Context manager in which settings come from the files of a run, which may be somebody else's."""
    token = _run_directory.set(directory)
    try:
        yield
    finally:
        _run_directory.reset(token)


def check_option_file(name: str) -> str:
    """Return the name of a file in an option; a UserError if a run names a file outside its directory."""
    directory = _run_directory.get()
    if directory is not None and not Path(name).resolve().is_relative_to(directory.resolve()):
        raise UserError(
            f"{format_value(name)} is outside the run directory; the settings of a run name files inside it "
            "only: move the file there, or remove the setting and give it on the command line"
        )
    return name


OptionFile = Annotated[str, BeforeValidator(check_option_file)]
