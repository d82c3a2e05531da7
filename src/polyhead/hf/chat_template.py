"""Detect the chat format of a checkpoint. Its template is parsed as text and never executed."""

from __future__ import annotations

import logging
from pathlib import Path

from polyhead.chat.detect_template import detect_format
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.hf.checkpoint_files import MAX_CONFIG_BYTES, find_file, read_checkpoint_json

log = logging.getLogger(__name__)
TEMPLATE_FILE = "chat_template.jinja"


def detect_chat_format(directory: Path) -> Choice | None:
    """Return the chat format of a checkpoint, or None if it has no template or an unknown one."""
    template = _read_template(directory)
    chat_format = None if template is None else detect_format(template)
    if template is not None and chat_format is None:
        log.warning(
            "%s: how it writes conversations is none of the formats that are built (%s): its template is left out",
            directory,
            ", ".join(CHAT.names()),
        )
    return chat_format


def _read_template(directory: Path) -> str | None:
    """Return the text of chat_template.jinja, else the template in tokenizer_config.json (of several,
    "default").
    """
    path = find_file(directory, TEMPLATE_FILE)
    if path is not None:
        if (size := path.stat().st_size) > MAX_CONFIG_BYTES:
            raise UserError(
                f"{directory / TEMPLATE_FILE} has {size:,} bytes; at most {MAX_CONFIG_BYTES:,} are read"
            )
        return path.read_text(encoding="utf-8", errors="replace")
    template = (read_checkpoint_json(directory, "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):
        templates = {
            entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)
        }
        template = templates.get("default")
    return template if isinstance(template, str) else None
