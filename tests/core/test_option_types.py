"""Tests of core/option_types.py."""

from __future__ import annotations

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from polyhead.core.option_types import Factor, resolve_factor

FACTOR = TypeAdapter(Factor)


@pytest.mark.parametrize(
    ("value", "number"),
    [(True, 0.125), (False, 1.0), (1, 1.0), (1.0, 1.0), (2, 2.0), (0.3, 0.3), (1e-9, 1e-9)],
)
def test_a_factor_is_its_number_or_the_default_or_one(value: object, number: float) -> None:
    assert resolve_factor(FACTOR.validate_python(value), 0.125) == number


@pytest.mark.parametrize("value", [1, 1.0, False])
def test_a_factor_of_one_is_none(value: object) -> None:
    assert FACTOR.validate_python(value) is False


@pytest.mark.parametrize("value", [0, -1, -0.5, math.inf, -math.inf, math.nan, "2", None, [2]])
def test_what_is_no_positive_number_is_no_factor(value: object) -> None:
    with pytest.raises(ValidationError, match="is not a factor: expected a number above 0, true or false"):
        FACTOR.validate_python(value)
