"""Command-line options derived from the fields of a config class."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from polyhead.config.yaml_io import parse_part
from polyhead.core.choice import Choice

FROM_RUN = "from the run"  # shown as the default of an option
_SCOPE = re.compile(r"^(?:sampling|translations|language models|beam search): ")
_DEFAULT = re.compile(r"; default: .*$")


def config_options(
    config: type[BaseModel], *keys: str, default: str | None = FROM_RUN
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb one option per key of a config, in place of its parameter ``**settings``.

    Type and help of an option come from the field. ``settings`` has the options of the command line, in which
    parts such as ``h2o,budget=256`` are parsed; the config checks their values. ``default`` is shown as the
    default; None shows, and passes, that of the field.
    """
    options = [_make_parameter(key, config.model_fields[key], default) for key in keys]
    parts = {key for key in keys if Choice in _members(config.model_fields[key].annotation)}

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def run(**arguments: Any) -> None:
            unset = {key for key in keys if arguments[key] is None}
            arguments = {key: value for key, value in arguments.items() if key not in unset}
            verb(**arguments | {key: parse_part(arguments[key]) for key in parts - unset})

        own = [
            p
            for p in inspect.signature(verb, eval_str=True).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
        parameters = sorted([*own, *options], key=lambda p: (p.kind, p in own))  # options of configs first
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _make_parameter(name: str, field: FieldInfo, default: str | None) -> inspect.Parameter:
    """The parameter of a verb for one field; its value is None if the option is not set."""
    members = set(_members(field.annotation))
    value_type = next((t for t in (bool, float, int) if members - {type(None)} == {t}), str)
    text = _DEFAULT.sub("", _SCOPE.sub("", field.description or ""))
    if field.examples:
        text += f", e.g. {' or '.join(field.examples)}"
    if Choice in members:
        text += f"; see polyhead components {name}"
    option = typer.Option(help=text, show_default=default or True)
    annotation = Annotated[value_type | None, option]  # type: ignore[valid-type]
    value = None if default else field.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=annotation)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
