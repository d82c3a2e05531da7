"""Shared by the tests of recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyhead.core.errors import UserError
from polyhead.run.recipe import load_recipe

TEXT = """
data:
  train: [train.de, train.en]
  valid: [val.de, val.en]
train:
  steps: 100
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return path


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        load_recipe(path, list(overrides))
    return str(error.value)
