"""Shared by the tests of recipes."""

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
def recipe_file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.yaml", TEXT)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def error_of(path: Path, *overrides: str) -> str:
    """The message for a recipe that is refused."""
    with pytest.raises(UserError) as error:
        load_recipe(path, list(overrides))
    return str(error.value)
