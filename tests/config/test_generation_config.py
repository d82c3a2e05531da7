import pytest

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError


def test_penalties_and_logit_bias_are_read_back():
    config = GenerationConfig(frequency_penalty=0.5, presence_penalty=-1, logit_bias={"7": -100, 3: 2})
    assert config.logit_bias == {7: -100.0, 3: 2.0}
    for mode in ("python", "json"):
        assert GenerationConfig.model_validate(config.model_dump(mode=mode)) == config
    assert GenerationConfig(logit_bias={2**31 - 1: 1.0}).logit_bias == {2**31 - 1: 1.0}  # ids are 31-bit
    with pytest.raises(UserError, match="logit_bias"):
        GenerationConfig(logit_bias={2**31: 1.0})
