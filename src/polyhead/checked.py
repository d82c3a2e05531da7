"""Settings that are checked when they are made: every mistake is a UserError of one line. No torch here."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from polyhead.errors import UserError, explain, show


class Checked(BaseModel):
    """Settings that are fixed once made and have no key that is not named.

    ``ModelConfig(d_mdoel=3)`` is answered as a recipe is: ``d_mdoel: unknown key; did you mean 'd_model'?``
    """

    shorthands: ClassVar[tuple[str, ...]] = ()
    """Keys that may be given too, and stand for others."""
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """To Python true is 1: ``average: true`` would be the mean of one checkpoint."""
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and kinds & {int, float} and not kinds & {bool, str}:
            raise PydanticKnownError("int_type" if int in kinds else "float_type")
        return value

    def __init__(self, *unnamed: Any, **given: Any) -> None:
        if unnamed:
            name = type(self).__name__
            raise UserError(
                f"{name} takes its keys by name, got {show(unnamed[0])}; a mapping of them is given as {name}(**mapping)"
            )
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise explain(error, type(self)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """What is fixed is not set: a UserError in place of pydantic's own."""
        kind = type(self).__name__
        raise UserError(f"{name}: a {kind} is frozen; make another")

    # settings within settings are validated as they would be without it, so that a message names the whole place
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _kinds(annotation: Any) -> set[Any]:
    """The classes that a type is made of: ``int | None`` -> int, NoneType."""
    inner = get_args(annotation)
    return (
        set().union(*map(_kinds, inner)) if inner else {annotation} if isinstance(annotation, type) else set()
    )
