"""Errors for users: what came, what is allowed, and the nearest valid value."""

from __future__ import annotations

import difflib
import math
import numbers
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from polyhead.core.key_aliases import aliased_name


class UserError(ValueError):
    """A mistake that the user can correct. The command line prints only the message and exits with 2."""


NOT_FINITE = "the model's output is NaN or infinite: its weights are damaged or overflow in this precision"


class NotFiniteError(UserError):
    """The output of a model is not a finite number, so it has no answer."""

    def __init__(self) -> None:
        super().__init__(NOT_FINITE)


MAX_INT = 2**31 - 1
"""Upper limit for integers; larger values overflow in libraries we call."""


@contextmanager
def prefix_errors(key: str) -> Iterator[None]:
    """Context manager that prefixes a UserError about a value with its key."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{key}: {error}") from None


def check_finite(value: Any) -> Any:
    """Return the value; a UserError if it is an integer beyond ``MAX_INT`` or not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{value} is not a finite number")
    if isinstance(value, int) and abs(value) > MAX_INT:
        raise UserError(f"{value} is out of range: expected at most {MAX_INT}")
    return value


def check_int(name: str, value: object, minimum: int | None = None) -> None:
    """Raise a UserError unless ``value`` is an integer (bool is not) and at least ``minimum``."""
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or (minimum is not None and int(value) < minimum)
    ):
        bound = "" if minimum is None else f", {minimum} or more"
        raise UserError(f"{name} is {format_value(value)}; expected an integer{bound}")


def did_you_mean(
    name: object, allowed: Iterable[str], cutoff: float = 0.5, prefix: str = "", kind: str = ""
) -> str:
    """``; did you mean 'rope'?`` if an allowed name is close, else empty. ``prefix`` is put before the name.

    A name is close if half of its letters match in order; slightly more for names of up to three letters,
    where any word may share two. A unique name that starts with the same four or more letters also matches.
    An alias of this ``kind`` from another toolkit comes first.
    """
    word, known = str(name).lower(), {str(candidate).lower(): str(candidate) for candidate in allowed}
    cutoff = max(cutoff, 0.55) if len(word) <= 3 else cutoff
    matches = [ours] if (ours := aliased_name(kind, name)) in known else []
    if not matches and len(word) > 3 and cutoff <= 0.6:
        matches = [candidate for candidate in known if candidate.startswith(word)]
    matches = matches if len(matches) == 1 else difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"; did you mean {prefix + known[matches[0]]!r}?" if matches else ""


def unknown_name_error(kind: str, name: object, allowed: Iterable[str]) -> UserError:
    """The error for an unknown name, with the nearest known one."""
    return UserError(f"unknown {kind} {format_value(name)}{known_names_hint(name, allowed, kind)}")


def known_names_hint(name: object, allowed: Iterable[str], kind: str = "") -> str:
    """``; known: ...``, all known names, after a suggestion if one is near."""
    allowed = sorted(allowed)
    hint, known = did_you_mean(name, allowed, kind=kind), ", ".join(allowed) or "none"
    return f"{hint} Known: {known}" if hint else f"; known: {known}"


def format_value(value: object) -> str:
    """The value as typed in YAML, shortened if it is long."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else reprlib.repr(value)
