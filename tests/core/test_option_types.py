import math

import pytest
from pydantic import TypeAdapter, ValidationError

from polyhead.core.option_types import Factor, resolve_factor

FACTOR = TypeAdapter(Factor)


@pytest.mark.parametrize(
    ("value", "number"),
    [(True, 0.125), (False, 1.0), (1, 1.0), (1.0, 1.0), (2, 2.0), (0.3, 0.3), (1e-9, 1e-9)],
)
def test_factor_is_number_or_default_or_one(value, number):
    factor = FACTOR.validate_python(value)
    assert resolve_factor(factor, 0.125) == number and (factor is False) == (number == 1)


@pytest.mark.parametrize("value", [0, -1, -0.5, math.inf, -math.inf, math.nan, "2", None, [2]])
def test_other_values_are_refused(value):
    with pytest.raises(ValidationError, match="is not a factor: expected a number above 0, true or false"):
        FACTOR.validate_python(value)
