"""Our own configurations that a published family has, and runs of them."""

from pathlib import Path

import yaml
from tests.hf.conftest import VOCABULARY, random_run

from polyhead import ModelConfig
from polyhead.config.generation_config import GenerationConfig

CONFIGS = yaml.safe_load((Path(__file__).parent / "own_configs.yaml").read_text(encoding="utf-8"))
BASES = CONFIGS["bases"]


def config(**changes):
    return ModelConfig(vocab_size=VOCABULARY, **(BASES["gpt2"] | changes))


def model_config(**parts):
    return ModelConfig.model_validate({"vocab_size": VOCABULARY, **parts})


def save_random_run(directory, **changes):
    generation = GenerationConfig(temperature=0.8, top_p=0.9, no_repeat_ngram_size=4)
    run = random_run(config(**changes), generation)
    run.save(directory)
    return run.model
