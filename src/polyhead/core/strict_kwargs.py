"""Report wrong call arguments of the Python API as a one-line UserError. No torch here."""

from __future__ import annotations

import builtins
import re
import shlex
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, isfunction, signature
from types import NoneType, UnionType
from typing import Any, TypeVar, cast

from polyhead.core.errors import UserError, did_you_mean, format_value, is_command_line
from polyhead.core.key_aliases import aliased_keys

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
_EXACT = {"bool": "true or false", "dict": "a dict", "set": "a set"}  # checked before the call
_TYPE_NAMES = {
    "str": "a text",
    "Path": "a path",
    "Callable": "a function",
    "int": "an integer",
    "Sequence": "a list",
}
_FUNCTIONS = {"init": "ph.init_recipe", "train": "ph.train"}  # verbs of commands in messages
_ARGUMENTS = {"--resume": "resume=True", "--design": "designs", "--output": "out"}


def strict_kwargs(function: _Function) -> _Function:
    """Decorator that reports unknown arguments as ``top_k: unknown key; did you mean 'top'?``.

    A flag must be true or false: "no" would be true. A path must not be empty: that would be the working
    directory. An argument of another type than its annotation is reported if the function fails with it, a
    dict or a set before. Outside of a command, a UserError names functions and arguments in place of verbs
    and options.
    """
    takes = signature(function)
    annotations = {name: str(parameter.annotation) for name, parameter in takes.parameters.items()}
    exact = {name: kind for name, text in annotations.items() if (kind := text.partition("[")[0]) in _EXACT}
    paths = [name for name, text in annotations.items() if "Path" in text]

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            for name in exact.keys() & kwargs.keys():
                value, kind = kwargs[name], exact[name]
                if not isinstance(value, getattr(builtins, kind)) and (value is not None or kind == "bool"):
                    raise UserError(f"{name} is {format_value(value)}; expected {_EXACT[kind]}")
            if paths:
                _check_paths(takes, paths, args, kwargs)
            return function(*args, **kwargs)
        except UserError as error:
            if not is_command_line():
                error.args = ("\n".join(map(to_python_words, str(error).split("\n"))),)
            raise
        except (TypeError, AttributeError):
            wrong = _argument_error(function, args, kwargs)
            if wrong is None:
                raise
        raise wrong

    return cast(_Function, wrapper)


def _check_paths(
    takes: Signature, paths: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise a UserError for a path that is an empty text."""
    try:
        arguments = takes.bind(*args, **kwargs).arguments
    except TypeError:  # which the call reports
        return
    for name in paths:
        value = arguments.get(name)
        values = value if isinstance(value, tuple) else (value,)
        if any(isinstance(value, str) and not value for value in values):
            raise UserError(f"{name} is empty; expected a path")


def to_python_words(message: str) -> str:
    """The message with ``resume=True`` for ``--resume`` and ``ph.train('x')`` for ``polyhead train x``."""
    text, command, line = message.partition("polyhead ")
    text = re.sub(
        r"(?<![\w'/-])--([a-z]+(?:-[a-z]+)*)",
        lambda option: _ARGUMENTS.get(option[0], option[1].replace("-", "_")),
        text,
    )
    return text + (_format_call(line) or command + line)


def _format_call(command: str) -> str:
    """The call of a command without "polyhead"; empty if no function does the same."""
    verb, _, options = command.partition(" ")
    try:
        words = iter(shlex.split(options))
    except ValueError:  # an open quote
        return ""
    arguments = []
    for word in words:
        if word.startswith("--") and word not in ("--resume", "--output"):
            return ""
        value = f"output={next(words, '')!r}" if word == "--output" else repr(word)
        arguments.append("resume=True" if word == "--resume" else value)
    call = f"({', '.join(arguments)})" if arguments else ""
    return f"{_FUNCTIONS[verb]}{call}" if verb in _FUNCTIONS else ""


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
        arguments = takes.bind(*args, **kwargs).arguments
    except TypeError as error:
        parameters = {name: parameter for name, parameter in takes.parameters.items() if name != "self"}
        named = {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        names = [name for name, parameter in parameters.items() if parameter.kind in named]
        positional = [name for name in names if parameters[name].kind is not Parameter.KEYWORD_ONLY]
        if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
            for name in sorted(set(kwargs) - set(names)):
                own = [word for key in aliased_keys(name) if (word := key.rpartition(".")[2]) in names]
                hint = did_you_mean(own[0] if own else name, names)
                known = f"; known: {', '.join(names)}"
                if "changes" in parameters:  # keys of a recipe, by position
                    known += "; keys of the recipe are texts, such as 'train.steps=100'"
                return UserError(f"{name}: unknown key{hint or known}")
        n_args = len(args) - ("self" in takes.parameters)
        if n_args > len(positional):
            takes_alone = f"takes {', '.join(positional) or 'nothing'} by position"
            return UserError(f"{function.__name__} {takes_alone}, got {n_args}; pass the others by keyword")
        return UserError(f"{function.__name__}: {str(error).replace(chr(39), '')}")
    for name, value in arguments.items():
        kinds = [kind.partition("[")[0] for kind in str(takes.parameters[name].annotation).split(" | ")]
        types = [_find_type(kind, function) for kind in kinds]
        if takes.parameters[name].kind is Parameter.VAR_POSITIONAL or None in types:
            continue
        if not isinstance(value, tuple(types)):
            expected = " or ".join(_TYPE_NAMES.get(kind, kind) for kind in kinds if kind != "None")
            return UserError(f"{name} is {format_value(value)}; expected {expected}")
    return None


def _find_type(name: str, function: Callable[..., Any]) -> Any:
    """The class, or union of classes, that a name in an annotation of the function has; None if unknown."""
    found = NoneType if name == "None" else function.__globals__.get(name) or getattr(builtins, name, None)
    return found if isinstance(found, type | UnionType) else None
