"""Read the chat template of a checkpoint, which is a known format or is rendered itself."""

from __future__ import annotations

import logging

from polyhead.chat.detect_template import detect_format
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import MAX_CONFIG_BYTES, CheckpointFiles

log = logging.getLogger(__name__)
TEMPLATE_FILE = "chat_template.jinja"


def detect_chat_format(files: CheckpointFiles) -> Choice | None:
    """Return the chat format of a checkpoint, or None if it has no template or one that cannot be used."""
    template = _read_template(files)
    if template is None:
        return None
    try:
        return detect_format(template)
    except UserError as error:
        log.warning("%s: its chat template is ignored: %s", files.directory, error)
        return None


def _read_template(files: CheckpointFiles) -> str | None:
    """Return the text of chat_template.jinja, else the template in tokenizer_config.json (of several,
    "default").
    """
    path = files.find(TEMPLATE_FILE, MAX_CONFIG_BYTES)
    if path is not None:
        return path.read_text(encoding="utf-8", errors="replace")
    template = (files.read_json("tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):
        templates = {
            entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)
        }
        template = templates.get("default")
    return template if isinstance(template, str) else None
