"""Shared by the tests of classify."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyhead import Choice, ModelConfig, build
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["ein hund bellt .", "zwei hunde bellen", "katze", "ja", "nein", "ein rotes haus"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer(TEXTS * 20, Choice("bpe"), 300)
    config = ModelConfig(
        kind="encoder",
        vocab_size=tokenizer.vocab_size,
        d_model=32,
        n_heads=4,
        n_layers=1,
        max_len=12,
        labels=("n", "y", "z"),
        n_segments=2,
    )
    directory = tmp_path_factory.mktemp("runs") / "classifier"
    Run(build(config, 3), tokenizer, GenerationConfig()).save(directory)
    return directory


def shell(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    return code, *capsys.readouterr()
