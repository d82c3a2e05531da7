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


_commands: list[bool] = []  # one entry while a command line runs, in all threads


@contextmanager
def command_line() -> Iterator[None]:
    """Context of a command line: errors name verbs and options; outside of it, functions and arguments."""
    _commands.append(True)
    try:
        yield
    finally:
        _commands.pop()


def is_command_line() -> bool:
    """Whether a command line runs, and not a program that imports the package."""
    return bool(_commands)


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


def check_int(name: str, value: object, minimum: int | None = None, maximum: int | None = None) -> None:
    """Raise a UserError unless ``value`` is an integer (bool is not) from ``minimum`` to ``maximum``."""
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or (minimum is not None and int(value) < minimum)
        or (maximum is not None and int(value) > maximum)
    ):
        bound = "" if minimum is None else f", {minimum} or more"
        bound = bound if maximum is None else f" from {minimum} to {maximum}"
        raise UserError(f"{name} is {format_value(value)}; expected an integer{bound}")


def find_similar(word: str, names: Iterable[str]) -> str | None:
    """The name that has 70 % of the letters of ``word`` in order, or the most; None if none is near.

    Of words of up to three letters 65 %: two of three.
    """
    names, cutoff = list(names), 0.65 if len(word) <= 3 else 0.7
    matches = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    # difflib is not symmetric: 'theta' and 'tetha' share 80 % of their letters in one order, 60 % in another
    matches += [name for name in names if difflib.get_close_matches(name, [word], cutoff=cutoff)]
    return matches[0] if matches else None


def did_you_mean(name: object, allowed: Iterable[str], prefix: str = "", kind: str = "") -> str:
    """``; did you mean 'rope'?`` if an allowed name is similar, else empty. ``prefix`` is put before it.

    A unique name that starts with the same three or more letters also matches. An alias of this ``kind`` from
    another toolkit comes first.
    """
    word, known = str(name).lower(), {str(candidate).lower(): str(candidate) for candidate in allowed}
    matches = [match for match in (aliased_name(kind, name),) if match in known]
    if not matches and len(word) > 2:
        matches = [candidate for candidate in known if candidate.startswith(word)]
    match = matches[0] if len(matches) == 1 else isinstance(name, str) and find_similar(word, known)
    if not match and (first_word := word.partition(".")[0]) in known:
        match = first_word  # "rope.theta=5" names rope
    return f"; did you mean {prefix + known[match]!r}?" if match else ""


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
