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


# names that are often typed without their owners, as the library transformers allowed once
OWNERS = {
    "openai-community": r"gpt2(-medium|-large|-xl)?",
    "distilbert": r"distil(bert|gpt2|roberta)[\w-]*",
    "google-bert": r"bert-(base|large)-[\w-]+",
    "FacebookAI": r"(xlm-)?roberta-(base|large)",
    "google-t5": r"t5-(small|base|large|3b|11b)",
    "albert": r"albert-(base|large|xlarge|xxlarge)-v[12]",
    "Helsinki-NLP": r"opus-mt-[\w-]+",
    "sentence-transformers": r"all-(MiniLM|mpnet)-[\w-]+|paraphrase-[\w-]+",
    "Qwen": r"Qwen[\d.]+-[\w.-]+",
    "EleutherAI": r"(pythia|gpt-neo|gpt-j)-[\w.-]+",
    "HuggingFaceTB": r"SmolLM[\w.-]+",
    "facebook": r"(opt|bart|m2m100|nllb|mbart)-[\w.-]+",
}


def owner_of(name: str) -> str:
    """The owner of a well-known checkpoint on the hub; empty for another."""
    return next((owner for owner, names in OWNERS.items() if re.fullmatch(names, name)), "")


def is_name(text: str) -> bool:
    """Whether it can be owner/name; where a directory of the owner's name stands here, it is a path."""
    return bool(re.fullmatch(NAME, text)) and ".." not in text and not Path(text).parent.is_dir()


def fetch(name: str, revision: str | None = None) -> Path:
    """The directory of a checkpoint in the cache of huggingface_hub, fetched if it is not there."""
    with at(f"no directory {name!r} here, and from the hub it cannot be had"):
        return snapshot(name, FILES, revision=revision)
