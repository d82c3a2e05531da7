"""List every key of a recipe with its type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from polyhead.cli.formatting import format_type, format_yaml
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.messages import section_type


def list_keys(root: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[str]:
    """Yield a line for each key, such as ``train.lr: float = 0.001  peak learning rate``."""
    for name, field in root.model_fields.items():
        kind = field.annotation
        if inner := section_type(kind):
            yield from list_keys(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: {format_type(kind)}{format_default(field)}{format_meaning(field)}"


def format_default(field: FieldInfo) -> str:
    """Return a default as `` = 0.001``; "" if the key is required."""
    value: Any = field.get_default(call_default_factory=True)
    if field.is_required():
        return ""
    return f" = {format_yaml(value.to_config() if isinstance(value, Choice) else value)}"


def format_meaning(field: FieldInfo) -> str:
    """Return the description of a key; for a part, where its options are listed."""
    if field.annotation is Choice:
        return "  a component, see polyhead components"
    return f"  {field.description}" if field.description else ""
