from pathlib import Path
from typing import Protocol

import pytest

from polyhead.core.choice import Choice
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer


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
