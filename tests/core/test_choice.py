"""Tests of core/choice.py."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from polyhead.core.choice import Choice


class Holder(BaseModel):
    part: Choice


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ("rope", Choice("rope")),
        ({"name": "rope"}, Choice("rope")),
        ({"name": "rope", "theta": 5.0}, Choice("rope", theta=5.0)),
        (Choice("rope"), Choice("rope")),
    ],
)
def test_a_choice_is_read_from_its_short_and_long_form(given: Any, choice: Choice) -> None:
    holder = Holder(part=given)
    assert holder.part == choice
    assert Holder.model_validate(holder.model_dump()) == holder
    assert Holder.model_validate_json(holder.model_dump_json()) == holder


@pytest.mark.parametrize("given", [3, None, {}, {"theta": 1}, {"name": 3}, ["rope"]])
def test_what_is_no_choice_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="is not a component: expected a name"):
        Holder(part=given)
