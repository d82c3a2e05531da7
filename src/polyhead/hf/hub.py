"""Checkpoints by their name on a hub, through huggingface_hub: its cache, its tokens, its HF_HUB_OFFLINE and HF_HOME."""

from __future__ import annotations

import os
import re
from pathlib import Path

from polyhead.errors import UserError

NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
FILES = ["*.json", "model.safetensors", "model-*.safetensors"]


def is_name(text: str) -> bool:
    """Whether it can be owner/name; where a directory of the owner's name stands here, it is a path."""
    return bool(NAME.fullmatch(text)) and ".." not in text and not Path(text).parent.is_dir()


def fetch(name: str) -> Path:
    """The directory of a checkpoint in the cache of huggingface_hub, fetched if it is not there. No code is."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        HFValidationError,
        OSError,
    ) as error:
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        why = "HF_HUB_OFFLINE is set, and it is not in the cache" if offline else str(error).splitlines()[0]
        raise UserError(f"no directory {name!r} here, and from the hub it cannot be had: {why}") from None
