"""Tests of config/generation_config.py."""

from polyhead.config.generation_config import GenerationConfig


def test_a_recipe_keeps_them(tmp_path):
    config = GenerationConfig(frequency_penalty=0.5, presence_penalty=-1, logit_bias={"7": -100, 3: 2})
    assert config.logit_bias == {7: -100.0, 3: 2.0}
    for mode in ("python", "json"):
        assert GenerationConfig.model_validate(config.model_dump(mode=mode)) == config
