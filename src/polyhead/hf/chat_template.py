"""Detect the chat format of a checkpoint. Its template is parsed as text and never executed."""

from __future__ import annotations

import logging

from polyhead.chat.detect_template import detect_format
from polyhead.core.choice import Choice
from polyhead.core.registry import CHAT
from polyhead.hf.checkpoint_files import MAX_CONFIG_BYTES, CheckpointFiles

log = logging.getLogger(__name__)
TEMPLATE_FILE = "chat_template.jinja"


def detect_chat_format(files: CheckpointFiles) -> Choice | None:
    """Return the chat format of a checkpoint, or None if it has no template or an unknown one."""
    template = _read_template(files)
    chat_format = None if template is None else detect_format(template)
    if template is not None and chat_format is None:
        log.warning(
            "%s: its chat template matches none of the supported formats (%s) and is ignored",
            files.directory,
            ", ".join(CHAT.names()),
        )
    return chat_format


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
