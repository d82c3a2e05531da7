import pytest
from tests.export.conftest import random_run, read_refused_configs

from polyhead.core.errors import UserError
from polyhead.export.onnx import check_onnx


@pytest.mark.parametrize(("config", "message"), read_refused_configs("onnx"))
def test_unsupported_part_is_refused(config, message):
    with pytest.raises(UserError) as error:
        check_onnx(random_run(**config).model, "fp32")
    assert str(error.value).startswith(message)
