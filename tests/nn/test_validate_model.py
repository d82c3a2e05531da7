import json
from pathlib import Path

import pytest
from tests.nn.model_helpers import ENCODER_SIZES

from polyhead import ModelConfig
from polyhead.core.errors import UserError
from polyhead.nn.validate_model import check_model


@pytest.mark.parametrize(
    ("changes", "message"), json.loads(Path(__file__).with_name("invalid_configs.json").read_text())
)
def test_invalid_config_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_model(ModelConfig(**{**ENCODER_SIZES, **changes}))
