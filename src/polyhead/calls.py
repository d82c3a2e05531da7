"""Calls with arguments that a function does not take: a UserError of one line in place of a TypeError. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar

from polyhead.errors import UserError, nearest

Call = TypeVar("Call", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound=type)


def told(function: Call) -> Call:
    """The same function, which says ``top_k: unknown key; did you mean 'top'?`` where that is none of its own."""

    @wraps(function)
    def call(*unnamed: Any, **given: Any) -> Any:
        try:
            return function(*unnamed, **given)
        except TypeError:
            wrong = _wrong(function, unnamed, given)
            if wrong is None:
                raise
        raise wrong

    return call  # type: ignore[return-value]


def told_calls(kind: Kind) -> Kind:
    """The same class, with all its public methods as ``told`` makes them."""
    for name, function in list(vars(kind).items()):
        if isfunction(function) and not name.startswith("_"):
            setattr(kind, name, told(function))
    return kind


def _wrong(function: Callable[..., Any], unnamed: tuple[Any, ...], given: dict[str, Any]) -> UserError | None:
    """What is wrong with the arguments; None where they are those of the function, and the mistake is within."""
    takes = signature(function)
    try:
        takes.bind(*unnamed, **given)
    except TypeError as error:
        named = {name: one for name, one in takes.parameters.items() if name != "self"}
        own = [name for name, one in named.items() if one.kind is not Parameter.VAR_KEYWORD]
        places = [name for name in own if named[name].kind is not Parameter.KEYWORD_ONLY]
        if len(named) == len(own):
            for name in sorted(set(given) - set(own)):
                return UserError(f"{name}: unknown key{nearest(name, own) or '; known: ' + ', '.join(own)}")
        came = len(unnamed) - ("self" in takes.parameters)
        if came > len(places):
            takes_alone = f"takes {', '.join(places) or 'nothing'} alone without a name"
            return UserError(f"{function.__name__} {takes_alone}, got {came}; give the others by name")
        return UserError(f"{function.__name__}: {str(error).replace(chr(39), '')}")
    return None
