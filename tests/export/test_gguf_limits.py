import pytest
from tests.export.conftest import random_run, read_refused_configs
from tests.export.gguf_helpers import LLAMA

from polyhead.core.errors import UserError
from polyhead.export.gguf import check_gguf


@pytest.mark.parametrize(("parts", "message"), read_refused_configs("gguf"))
def test_unsupported_component_is_refused(parts, message):
    with pytest.raises(UserError) as error:
        check_gguf(random_run(**{**LLAMA, **parts}), "fp32")
    assert message in str(error.value)
