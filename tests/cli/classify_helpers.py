"""Shared by the tests of classify and of the evaluation of classifiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "zwei hunde bellen", "katze", "ja", "nein", "ein rotes haus"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an untrained run with the classes n, y and z."""
    tokenizer = train_tokenizer(TEXTS * 20, Choice("bpe"), 300)
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 1, "max_len": 12, "n_segments": 2}
    config = ModelConfig(kind="encoder", vocab_size=tokenizer.vocab_size, labels=("n", "y", "z"), **sizes)
    directory = tmp_path_factory.mktemp("runs") / "classifier"
    Run(build(config, 3), tokenizer, GenerationConfig()).save(directory)
    return directory
