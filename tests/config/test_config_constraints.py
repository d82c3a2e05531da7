import json
from pathlib import Path

import pytest

from polyhead import ModelConfig
from polyhead.nn.validate_model import check_model


@pytest.mark.whole
@pytest.mark.parametrize(
    ("fields", "message"), json.loads(Path(__file__).with_name("invalid_configs.json").read_text())
)
def test_invalid_config_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        check_model(ModelConfig(**{"vocab_size": 10, **fields}))
