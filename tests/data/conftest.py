from pathlib import Path
from typing import Protocol

import pytest

from polyhead.registry import Choice
from polyhead.text.learn import train_tokenizer
from polyhead.text.tokenizer import Tokenizer


class Write(Protocol):
    def __call__(self, name: str, content: bytes | str) -> Path: ...


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file exactly as given and return its path."""

    def written(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A token a byte, so that lengths are plain."""
    return train_tokenizer(["a"], Choice("byte"), 261)
