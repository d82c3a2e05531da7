"""A corpus and a recipe so small that a cell takes a fraction of a second, and cells that run in this
process.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from polyhead.compare import run, trial
from polyhead.compare.subprocess_runner import StopHandler
from polyhead.compare.trial import run_trial

WORDS = {"ein": "a", "zwei": "two", "hund": "dog", "katze": "cat", "rot": "red", "und": "and", "hier": "here"}
RECIPE = """
data: {train: [train.de, train.en], valid: [valid.de, valid.en], test: [test.de, test.en], target_lang: en}
tokenizer: {vocab_size: 280}
model: {d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, max_len: 32, position: learned}
train: {steps: 24, max_tokens: 48, lr: 1e-2, precision: fp32, schedule: {name: inverse_sqrt, warmup: 4}, threads: 1}
generation: {beam_size: 1, max_length_ratio: 1.0, max_length_extra: 0}
"""  # noqa: E501


def write_text(directory: Path, **counts: int) -> None:
    """Sentences of one to seven words, translated word by word."""
    rng = np.random.default_rng(3)
    for split, count in counts.items():
        rows = [
            [list(WORDS)[i] for i in rng.integers(0, len(WORDS), rng.integers(1, 8))] for _ in range(count)
        ]
        (directory / f"{split}.de").write_text("".join(" ".join(row) + "\n" for row in rows))
        (directory / f"{split}.en").write_text(
            "".join(" ".join(WORDS[w] for w in row) + "\n" for row in rows)
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with text and a recipe, to stand in."""
    write_text(tmp_path, train=30, valid=12, test=8)
    (tmp_path / "toy.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no waiting for the disk
    return tmp_path


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cells without processes of their own; their names as they are run."""
    ran: list[str] = []
    threads = torch.get_num_threads()

    def here(directory: Path, stop: StopHandler) -> int:
        ran.append(directory.name)
        run_trial(directory)
        torch.set_num_threads(threads)
        return 0

    monkeypatch.setattr(run, "run_subprocess", here)
    return ran


@pytest.fixture
def unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells without baselines, as older ones are: designs that have hardly learned are compared all the
    same.
    """
    monkeypatch.setattr(trial, "find_baselines", lambda task, run: {})
