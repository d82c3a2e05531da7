"""How a checkpoint writes conversations: its template is read as text, and never run."""

from __future__ import annotations

import logging
from pathlib import Path

from polyhead.errors import UserError
from polyhead.hf.files import MAX_CONFIG, inside, read_json
from polyhead.registry import CHAT, Choice
from polyhead.text.chat.recognise import recognise

log = logging.getLogger(__name__)
TEMPLATE = "chat_template.jinja"


def chat_of(directory: Path) -> Choice | None:
    """The format of a checkpoint; None where it has no template, or one that is not known."""
    template = _template(directory)
    found = None if template is None else recognise(template)
    if template is not None and found is None:
        log.warning(
            "%s: how it writes conversations is none of the formats that are built (%s): its template is left out",
            directory,
            ", ".join(CHAT.names()),
        )
    return found


def _template(directory: Path) -> str | None:
    """The template of the file of that name, or that of tokenizer_config.json; of several the one called default."""
    path = inside(directory, TEMPLATE)
    if path is not None:
        if (size := path.stat().st_size) > MAX_CONFIG:
            raise UserError(f"{directory / TEMPLATE} has {size:,} bytes; at most {MAX_CONFIG:,} are read")
        return path.read_text(encoding="utf-8", errors="replace")
    found = (read_json(directory, "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
