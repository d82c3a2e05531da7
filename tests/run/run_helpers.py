"""Shared by the tests of run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]

GENERATION = GenerationConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3)


def tokenizer(size: int = 300) -> Tokenizer:
    return train_tokenizer(TEXTS * 5, Choice("bpe"), size)


def run(vocab_size: int | None = None, **changes: Any) -> Run:
    tokens = tokenizer()
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 32} | changes
    return Run(
        build(ModelConfig(vocab_size=vocab_size or tokens.vocab_size, **sizes), seed=1), tokens, GENERATION
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "tiny"
    run().save(directory, "# facts\n")
    return directory


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def edited(name: str, **changes: Any) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit
