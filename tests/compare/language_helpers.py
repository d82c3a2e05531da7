"""Shared by the tests of language."""

from __future__ import annotations

from pathlib import Path

import pytest

LM = """
task: language-model
data: {train: train.en, valid: valid.en, test: test.en, max_len: 8}
tokenizer: {kind: char}
model: {d_model: 16, n_layers: 1, n_heads: 2, d_ff: 32, max_len: 12, position: learned}
train: {steps: 24, max_tokens: 24, lr: 1e-2, precision: fp32, schedule: {name: inverse_sqrt, warmup: 1}, threads: 1}
"""  # noqa: E501


@pytest.fixture
def lm(place: Path) -> Path:
    """As ``place``, with the recipe of a language model of the English side."""
    (place / "lm.yaml").write_text(LM)
    return place
