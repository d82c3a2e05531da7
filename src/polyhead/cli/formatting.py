"""Format types and values as they are written in a recipe."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any

from polyhead.core.choice import Choice


def format_type(hint: Any) -> str:
    """Format a type for users: ``float``, ``int | null``, ``linear | dynamic``."""
    if hint is Choice:
        return "part"
    if typing.get_origin(hint) is Annotated:
        return format_type(typing.get_args(hint)[0])
    if hint is types.NoneType:
        return "null"
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(format_type(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is not None:
        inner = ", ".join(format_type(part) for part in typing.get_args(hint) if part is not Ellipsis)
        return f"{typing.get_origin(hint).__name__}[{inner}]"
    return str(getattr(hint, "__name__", hint))


def format_yaml(value: Any) -> str:
    """Format a default as it is written in a recipe."""
    if value == "":
        return '""'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(format_yaml, value))}]"
    return str(value)
