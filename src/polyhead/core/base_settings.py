"""Settings classes that validate on construction; every mistake is a one-line UserError. No torch here."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from polyhead.core.errors import UserError, format_value
from polyhead.core.messages import from_validation_error


class FrozenSettings(BaseModel):
    """Immutable settings that reject unknown keys.

    ``ModelConfig(d_mdoel=3)`` gives the same message as a recipe: ``d_mdoel: unknown key; did you mean
    'd_model'?``
    """

    shorthands: ClassVar[tuple[str, ...]] = ()
    """Additional accepted keys that expand to others."""
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject bool where a number is expected.

        To Python true is 1, so ``average: true`` would be the average of one checkpoint.
        """
        if isinstance(value, bool):
            kinds = _annotation_types(cls.model_fields[str(info.field_name)].annotation)
            if kinds & {int, float} and not kinds & {bool, str}:
                raise PydanticKnownError("int_type" if int in kinds else "float_type")
        return value

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args:
            name = type(self).__name__
            raise UserError(
                f"{name} takes keyword arguments only, got {format_value(args[0])}; for a mapping "
                f"write {name}(**mapping)"
            )
        try:
            super().__init__(**kwargs)
        except ValidationError as error:
            raise from_validation_error(error, type(self)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise a UserError in place of pydantic's error: settings are frozen."""
        kind = type(self).__name__
        raise UserError(f"{name}: a {kind} is frozen; create a new one")

    # nested settings are then validated without calling this __init__, so that messages have the full path
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _annotation_types(annotation: Any) -> set[Any]:
    """The classes in a type annotation: ``int | None`` -> int, NoneType."""
    if inner := get_args(annotation):
        return set().union(*map(_annotation_types, inner))
    return {annotation} if isinstance(annotation, type) else set()
