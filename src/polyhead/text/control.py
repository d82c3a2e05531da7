"""Characters that command a terminal instead of being shown."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


def spelled(text: str) -> str:
    """The text with its control characters written as ``\\x1b``, so that they are seen and do nothing."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
