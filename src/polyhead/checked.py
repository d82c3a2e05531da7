"""Settings that are checked when they are made: every mistake is a UserError of one line. No torch here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from polyhead.errors import explain


class Checked(BaseModel):
    """Settings that are fixed once made and have no key that is not named.

    ``ModelConfig(d_mdoel=3)`` is answered as a recipe is: ``d_mdoel: unknown key; did you mean 'd_model'?``
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise explain(error, type(self)) from None

    # settings within settings are validated as they would be without it, so that a message names the whole place
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]
