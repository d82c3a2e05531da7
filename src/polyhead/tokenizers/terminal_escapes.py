"""Escape terminal control characters in text."""

from __future__ import annotations

import re

_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


def escape_controls(text: str) -> str:
    """The text with control characters escaped, such as ``\\x1b``, so that a terminal prints them."""
    return _CONTROL_CHARS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
