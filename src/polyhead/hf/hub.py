"""Checkpoints by their name on the hub."""

from __future__ import annotations

import re
from pathlib import Path

from polyhead.errors import at
from polyhead.hf.chat import TEMPLATE
from polyhead.hub import NAME, snapshot

FILES = [
    "*.json",
    TEMPLATE,
    "*.spm",
    "sentencepiece.bpe.model",
    "merges.txt",
    "vocab.txt",
    "model.safetensors",
    "model-*.safetensors",
    "adapter_model.safetensors",
    "*_Dense*/model.safetensors",
]


def is_name(text: str) -> bool:
    """Whether it can be owner/name; where a directory of the owner's name stands here, it is a path."""
    return bool(re.fullmatch(NAME, text)) and ".." not in text and not Path(text).parent.is_dir()


def fetch(name: str, revision: str | None = None) -> Path:
    """The directory of a checkpoint in the cache of huggingface_hub, fetched if it is not there."""
    with at(f"no directory {name!r} here, and from the hub it cannot be had"):
        return snapshot(name, FILES, revision=revision)
