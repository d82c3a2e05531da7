"""Report wrong call arguments as a one-line UserError instead of a TypeError. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, isfunction, signature
from typing import Any, TypeVar, cast

from polyhead.core.errors import UserError, did_you_mean

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def strict_kwargs(function: _Function) -> _Function:
    """Decorator that reports unknown arguments as ``top_k: unknown key; did you mean 'top'?``."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
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


def _argument_error(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> UserError | None:
    """The error for wrong arguments; None if the arguments are valid and the TypeError came from inside."""
    takes = signature(function)
    try:
        takes.bind(*args, **kwargs)
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
    return None
