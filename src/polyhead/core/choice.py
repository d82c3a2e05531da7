"""A part chosen by name, as it is written in a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from polyhead.core.errors import UserError, format_value


@dataclass(frozen=True, init=False, repr=False)
class Choice:
    """A part chosen by name, with its options: ``"rope"`` or ``{"name": "rope", "theta": 500000.0}``."""

    name: str
    options: dict[str, Any]

    def __init__(self, name: str, /, **options: Any) -> None:
        if not isinstance(name, str):
            raise UserError(
                f"Choice expects the name of a component, got {format_value(name)}; pass options by "
                "name, e.g. Choice('rope', theta=5e5)"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "options", options)

    def __repr__(self) -> str:
        return f"Choice({', '.join([repr(self.name), *(f'{k}={v!r}' for k, v in self.options.items())])})"

    @classmethod
    def from_config(cls, value: Any) -> Choice:
        """Parse a name, or a mapping with a name and options."""
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise UserError(
                f"{format_value(value)} is not a component: expected a name, or {{name: ..., option: value}}"
            )
        return cls(value["name"], **{str(k): v for k, v in value.items() if k != "name"})

    def to_config(self) -> str | dict[str, Any]:
        """The shortest form that ``from_config`` accepts."""
        return {"name": self.name, **self.options} if self.options else self.name

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        serializer = core_schema.plain_serializer_function_ser_schema(cls.to_config)
        return core_schema.no_info_plain_validator_function(cls.from_config, serialization=serializer)
