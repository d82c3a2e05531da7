"""Every key of a recipe with its type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from polyhead.cli.words import type_name, yaml_word
from polyhead.errors import section
from polyhead.recipe import Recipe
from polyhead.registry import Choice


def keys(root: type[BaseModel] = Recipe, under: str = "") -> Iterator[str]:
    """A line for each key: ``train.lr: float = 0.001  peak learning rate``."""
    for name, field in root.model_fields.items():
        kind = field.annotation
        if inner := section(kind):
            yield from keys(inner, f"{under}{name}.")
        else:
            yield f"{under}{name}: {type_name(kind)}{default(field)}{meaning(field)}"


def default(field: FieldInfo) -> str:
    """`` = 0.001``, or nothing where there is none."""
    value: Any = field.get_default(call_default_factory=True)
    if field.is_required():
        return ""
    return f" = {yaml_word(value.written() if isinstance(value, Choice) else value)}"


def meaning(field: FieldInfo) -> str:
    """What the key is for; for a part, where to look."""
    if field.annotation is Choice:
        return "  a part, see polyhead parts"
    return f"  {field.description}" if field.description else ""
