"""Runs of small random models for the tests of engines and texts."""

import pytest
from tests.generation.helpers import build_noisy

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]
SETTINGS = {"beam_size": 3, "max_new_tokens": 15, "max_length_ratio": 1.0, "max_length_extra": 5}


def make_run(kind, tokenizer=None, seed=1, settings=SETTINGS, **changes):
    tokenizer = tokenizer or train_tokenizer(TEXTS * 5, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48} | changes
    config = ModelConfig(kind=kind, vocab_size=tokenizer.vocab_size, tie_embeddings="none", **sizes)
    return Run(build_noisy(config, seed, 0.3, 2), tokenizer, GenerationConfig(**settings))


def make_byte_run(kind, seed=3):
    tokenizer = train_tokenizer(["a"], Choice("byte"), 261)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64}
    model = build(ModelConfig(kind=kind, vocab_size=tokenizer.vocab_size, **sizes), seed=seed)
    settings = {"max_new_tokens": 7, "max_length_ratio": 0, "max_length_extra": 7}
    return Run(model, tokenizer, GenerationConfig(**settings))


def ends_inside_character(run, rows):
    return any(text.endswith("\ufffd") for text in run.tokenizer.decode(rows))


@pytest.fixture(scope="module")
def run():
    return make_run("decoder")
