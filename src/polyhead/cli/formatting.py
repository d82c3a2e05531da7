"""Format types, values and recipe keys as they are written in a recipe, and paragraphs for the terminal."""

from __future__ import annotations

import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel

from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.messages import section_type


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


def wrap_paragraph(text: str, first_indent: str = "", next_indent: str = "") -> list[str]:
    """Wrap a paragraph to the width of the terminal; list items start on new lines."""
    width = min(shutil.get_terminal_size((100, 0)).columns, 110)
    plain = text.replace("``", "").replace("`", "")
    points = [" ".join(point.split()) for point in plain.split("\n- ")]
    wrap = textwrap.TextWrapper(width, break_on_hyphens=False, break_long_words=False)
    lines = []
    for i, point in enumerate(points):
        wrap.initial_indent, wrap.subsequent_indent = (
            (first_indent, next_indent) if i == 0 else (f"{next_indent}- ", f"{next_indent}  ")
        )
        lines += wrap.wrap(point)
    return lines


def list_keys(root: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[str]:
    """Yield a line for each key, such as ``train.lr: float = 0.001  peak learning rate``."""
    for name, field in root.model_fields.items():
        kind = field.annotation
        if inner := section_type(kind):
            yield from list_keys(inner, f"{prefix}{name}.")
            continue
        value: Any = field.get_default(call_default_factory=True)
        text = format_yaml(value.to_config() if isinstance(value, Choice) else value)
        default = "" if field.is_required() else f" = {text}"
        meaning = "a component, see polyhead components" if kind is Choice else field.description
        yield f"{prefix}{name}: {format_type(kind)}{default}{f'  {meaning}' if meaning else ''}"
