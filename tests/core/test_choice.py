import pytest
from pydantic import BaseModel

from polyhead.core.choice import Choice


class Holder(BaseModel):
    part: Choice


@pytest.mark.parametrize("value", ["rope", {"name": "rope"}, {"name": "rope", "theta": 5.0}, Choice("rope")])
def test_choice_is_read_from_name_or_mapping(value):
    holder = Holder(part=value)
    assert holder.part == Choice("rope", **({"theta": 5.0} if "theta" in str(value) else {}))
    assert Holder.model_validate(holder.model_dump()) == holder
    assert Holder.model_validate_json(holder.model_dump_json()) == holder


@pytest.mark.parametrize("value", [3, None, {}, {"theta": 1}, {"name": 3}, ["rope"]])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match="is not a component: expected a name"):
        Holder(part=value)
