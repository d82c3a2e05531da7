"""A tiny run directory, untrained but complete."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXTS * 20, Choice("bpe"), 300)
    config = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=32, n_heads=4, n_layers=1, max_len=32)
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    generation = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3)
    Run(build(config), tokenizer, generation).save(directory)
    return directory
