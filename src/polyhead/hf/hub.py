"""Find and fetch checkpoints on the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from polyhead.core.errors import prefix_errors
from polyhead.core.hub import REPO_NAME, download_snapshot
from polyhead.hf.generation_config import TEMPLATE_FILE

_CHECKPOINT_FILES = [
    "*.json",
    TEMPLATE_FILE,
    "*.spm",
    "sentencepiece.bpe.model",
    "merges.txt",
    "vocab.txt",
    "model.safetensors",
    "model-*.safetensors",
    "adapter_model.safetensors",
    "*_Dense*/model.safetensors",
]


# checkpoints that transformers once allowed without an owner: owner -> regular expression of names
KNOWN_OWNERS = {
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


def find_owner(name: str) -> str:
    """Return the owner of a well-known checkpoint on the hub, or an empty string."""
    return next((owner for owner, names in KNOWN_OWNERS.items() if re.fullmatch(names, name)), "")


def is_repo_id(text: str) -> bool:
    """Return whether a text can be owner/name. It is a path if there is a local directory with the owner's
    name.
    """
    return bool(re.fullmatch(REPO_NAME, text)) and ".." not in text and not Path(text).parent.is_dir()


def fetch_checkpoint(name: str, revision: str | None = None) -> Path:
    """Return the directory of a checkpoint in the cache of huggingface_hub, downloading it if necessary."""
    with prefix_errors(f"no directory {name!r}, and it cannot be downloaded from the hub"):
        return download_snapshot(name, _CHECKPOINT_FILES, revision=revision)
