import pytest
from tests.generation.helpers import REFUSALS

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.generation.settings import with_overrides


@pytest.mark.parametrize(("verb", "name", "hint"), REFUSALS["unknown options"])
def test_unknown_options_get_hints_for_the_verb(verb, name, hint):
    with pytest.raises(UserError) as error:
        with_overrides(GenerationConfig(), {name: 4}, verb)
    assert str(error.value).startswith(f"{name}: unknown key{hint}")
