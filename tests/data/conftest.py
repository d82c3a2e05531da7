from collections.abc import Callable
from pathlib import Path

import pytest

from polyhead import Choice
from polyhead.tokenizers.train_tokenizer import train_tokenizer

WriteFile = Callable[[str, bytes | str], Path]


@pytest.fixture
def write_file(tmp_path):
    """A function that writes content to a named file and returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture(scope="session")
def tokenizer():
    """One token per byte, so that lengths are plain."""
    return train_tokenizer(["a"], Choice("byte"), 261)
