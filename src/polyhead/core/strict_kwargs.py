"""Report wrong call arguments of the Python API as a one-line UserError. No torch here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, isfunction, signature
from numbers import Integral
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast

from polyhead.core.errors import UserError, did_you_mean, format_value

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
# types in annotations, with their names in messages
_TYPES: dict[str, tuple[Any, str]] = {
    "str": (str, "a text"),
    "Path": (Path, "a path"),
    "Callable": (Callable, "a function"),
    "int": (Integral, "an integer"),
    "Sequence": (Collection, "a list"),
    "dict": (dict, "a dict"),
    "set": (set, "a set"),
    "None": (NoneType, ""),
}
_FILLED_TYPES = {"dict", "set"}  # of arguments that the function fills, perhaps never: checked before it runs


def strict_kwargs(function: _Function) -> _Function:
    """Decorator that reports unknown arguments as ``top_k: unknown key; did you mean 'top'?``.

    A flag must be true or false: "no" would be true. An argument of another type than its annotation is
    reported if the function fails with it; a dict or a set that it fills, always.
    """
    parameters = signature(function).parameters
    flags = [name for name, parameter in parameters.items() if parameter.annotation in ("bool", bool)]
    filled = [name for name, parameter in parameters.items() if _FILLED_TYPES & {*_list_types(parameter)}]

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name in flags:
            if (value := kwargs.get(name)) not in (True, False, None):
                raise UserError(f"{name} is {format_value(value)}; expected true or false")
        for name in [name for name in filled if name in kwargs]:
            if error := _type_error(parameters[name], kwargs[name]):
                raise error
        try:
            return function(*args, **kwargs)
        except (TypeError, AttributeError):
            wrong = _argument_error(function, args, kwargs)
            if wrong is None:
                raise
        raise wrong

    return cast(_Function, wrapper)


def strict_methods(target_class: _Class) -> _Class:
    """Class decorator that applies ``strict_kwargs`` to all public methods."""
    for name, function in list(vars(target_class).items()):
        if isfunction(function) and not name.startswith("_"):
            setattr(target_class, name, strict_kwargs(function))
    return target_class


@contextmanager
def name_arguments() -> Iterator[None]:
    """Errors that name the arguments and functions of Python, not options and verbs."""
    try:
        yield
    except UserError as error:
        text = str(error)
        if command := re.search(r"polyhead init (.*?)( --output mine\.yaml)?$", text):
            files = ", ".join(map(repr, shlex.split(command[1])))
            output = ", output='mine.yaml'" if command[2] else ""
            text = text.replace(command[0], f"ph.init_recipe({files}{output})")
        text = text.replace("--resume", "resume=True").replace("--output", "out")
        text = re.sub(r"--(budget|match|vary|seeds)\b", r"\1", text).replace("--design", "designs")
        if text == str(error):
            raise
        raise UserError(text) from None


def _argument_error(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> UserError | None:
    """The error for wrong arguments; None if the arguments are valid and the TypeError came from inside."""
    takes = signature(function)
    try:
        arguments = takes.bind(*args, **kwargs).arguments
    except TypeError as error:
        parameters = {name: parameter for name, parameter in takes.parameters.items() if name != "self"}
        names = [
            name for name, parameter in parameters.items() if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        positional = [name for name in names if parameters[name].kind is not Parameter.KEYWORD_ONLY]
        if len(parameters) == len(names):
            for name in sorted(set(kwargs) - set(names)):
                return UserError(
                    f"{name}: unknown key{did_you_mean(name, names) or '; known: ' + ', '.join(names)}"
                )
        n_args = len(args) - ("self" in takes.parameters)
        if n_args > len(positional):
            takes_alone = f"takes {', '.join(positional) or 'nothing'} by position"
            return UserError(f"{function.__name__} {takes_alone}, got {n_args}; pass the others by keyword")
        return UserError(f"{function.__name__}: {str(error).replace(chr(39), '')}")
    return next(
        filter(None, (_type_error(takes.parameters[name], value) for name, value in arguments.items())), None
    )


def _list_types(parameter: Parameter) -> list[str]:
    """The types in the annotation of a parameter; empty if one of them is not in ``_TYPES``."""
    types = [part.partition("[")[0] for part in str(parameter.annotation).split(" | ")]
    is_checked = parameter.kind is not Parameter.VAR_POSITIONAL and _TYPES.keys() >= {*types}
    return types if is_checked else []


def _type_error(parameter: Parameter, value: object) -> UserError | None:
    """The error for an argument of another type; None if its type is right, or not checked."""
    types = _list_types(parameter)
    if not types or isinstance(value, tuple(_TYPES[name][0] for name in types)):
        return None
    expected = " or ".join(dict.fromkeys(filter(None, (_TYPES[name][1] for name in types))))
    return UserError(f"{parameter.name} is {format_value(value)}; expected {expected}")
