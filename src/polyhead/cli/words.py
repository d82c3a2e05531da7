"""Types and values as they are written in a recipe."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any

from polyhead.registry import Choice


def type_name(hint: Any) -> str:
    """A type as a user would say it: ``float``, ``int | null``, ``linear | dynamic``."""
    if hint is Choice:
        return "part"
    if typing.get_origin(hint) is Annotated:
        return type_name(typing.get_args(hint)[0])
    if hint is types.NoneType:
        return "null"
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(type_name(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is not None:
        inner = ", ".join(type_name(part) for part in typing.get_args(hint) if part is not Ellipsis)
        return f"{typing.get_origin(hint).__name__}[{inner}]"
    return str(getattr(hint, "__name__", hint))


def yaml_word(value: Any) -> str:
    """A default as it would be written in a recipe."""
    if value == "":
        return '""'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(yaml_word, value))}]"
    return str(value)
