"""Private characters that replace those of messages, and special tokens, while a template is rendered.

In the rendered text every character of ``EDGE_CHARS`` is one of the template, so a special token that starts
or ends with one is one of the template too. A placeholder replaces one character: a template that trims, cuts
or searches a text does the same with its placeholders.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from polyhead.core.errors import UserError

EDGE_CHARS = "<>[]|{}()#@&*~^/=:`!?%+;"
TOKEN_ROLES = (
    "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token",
)  # fmt: skip
_FIRST_BLOCK, _LAST_BLOCK, _BLOCK_SIZE = 0x1000, 0x10FE, 0x100  # the last plane, of private characters
_FIRST_ROLE, _ANSWER_START, _ANSWER_END = 0x80, 0xA0, 0xA1


class Placeholders:
    """The placeholders of one block of private characters, of which no text of a rendering has any."""

    def __init__(self, block: int, edge_chars: str = EDGE_CHARS) -> None:
        self.block, base = block, block * _BLOCK_SIZE
        self.originals = {chr(base + ord(c)): c for c in edge_chars}
        self.roles = {role: chr(base + _FIRST_ROLE + i) for i, role in enumerate(TOKEN_ROLES)}
        self.answer_start, self.answer_end = chr(base + _ANSWER_START), chr(base + _ANSWER_END)
        self._placeholders = {c: placeholder for placeholder, c in self.originals.items()}
        self._edges = re.compile(f"[{re.escape(edge_chars)}]")
        self._pattern = re.compile(f"[{''.join(self.originals)}]")

    def protect(self, value: Any) -> Any:
        """A JSON value with placeholders in all of its texts."""
        if isinstance(value, str):
            return self._edges.sub(lambda match: self._placeholders[match[0]], value)
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        return [self.protect(item) for item in value] if isinstance(value, list) else value

    def restore(self, value: Any) -> Any:
        """A value with the original characters in place of their placeholders."""
        if isinstance(value, str):
            return value if value.isascii() else self._pattern.sub(lambda m: self.originals[m[0]], value)
        if isinstance(value, dict):
            return {self.restore(key): self.restore(item) for key, item in value.items()}
        return type(value)(map(self.restore, value)) if type(value) in (list, tuple) else value


def choose_placeholders(*values: Any, edge_chars: str = EDGE_CHARS) -> Placeholders:
    """Placeholders that do not occur in JSON values; UserError if the values leave no block of them."""
    used = {ord(c) // _BLOCK_SIZE for c in set(json.dumps(values, ensure_ascii=False))}
    free = (block for block in range(_FIRST_BLOCK, _LAST_BLOCK) if block not in used)
    if (block := next(free, None)) is None:
        raise UserError("the conversation has too many private-use characters for its chat template")
    return _get_placeholders(block, edge_chars)


_get_placeholders = lru_cache(16)(Placeholders)
