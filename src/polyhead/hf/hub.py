"""Checkpoints by their name on a hub, through huggingface_hub: its cache, its tokens, its HF_HUB_OFFLINE and HF_HOME."""

from __future__ import annotations

import os
import re
from pathlib import Path

from polyhead.errors import UserError
from polyhead.hf.chat import TEMPLATE

NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
FILES = ["*.json", TEMPLATE, "model.safetensors", "model-*.safetensors"]


def is_name(text: str) -> bool:
    """Whether it can be owner/name; where a directory of the owner's name stands here, it is a path."""
    return bool(NAME.fullmatch(text)) and ".." not in text and not Path(text).parent.is_dir()


def fetch(name: str) -> Path:
    """The directory of a checkpoint in the cache of huggingface_hub, fetched if it is not there. No code is."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except Exception as error:  # of the hub's library, or of the one that it speaks HTTP with
        raise UserError(
            f"no directory {name!r} here, and from the hub it cannot be had: {_why(error)}"
        ) from None


def _why(error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return (
            "access to it is granted on its page there; then give your token with `hf auth login` or HF_TOKEN"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            "it has none of that name, or a private one, which wants your token (`hf auth login` or HF_TOKEN)"
        )
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set, and it is not in the cache, or not all of it"
    return (str(error) or type(error).__name__).splitlines()[0]
