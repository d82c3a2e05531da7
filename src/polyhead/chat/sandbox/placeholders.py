"""Private characters that replace those of messages, and special tokens, while a template is rendered.

In the rendered text every character of ``EDGE_CHARS`` is one of the template, so a special token that starts
or ends with one is one of the template too. A placeholder replaces one character: a template that trims, cuts
or searches a text does the same with its placeholders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

EDGE_CHARS = "<>[]|{}()#@&*~^/=:`!?%+;"
TOKEN_ROLES = (
    "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token",
)  # fmt: skip
_FIRST_BLOCK, _LAST_BLOCK, _BLOCK_SIZE = 0x1000, 0x10FE, 0x100  # the last plane, of private characters
_FIRST_ROLE, _ANSWER_START, _ANSWER_END = 0x80, 0xA0, 0xA1


class Placeholders:
    """The placeholders of one block of private characters, of which no text of a rendering has any."""

    def __init__(self, block: int) -> None:
        self.block, base = block, block * _BLOCK_SIZE
        self._encoding = str.maketrans({c: chr(base + ord(c)) for c in EDGE_CHARS})
        self.originals = {chr(base + ord(c)): c for c in EDGE_CHARS}
        self.roles = {role: chr(base + _FIRST_ROLE + i) for i, role in enumerate(TOKEN_ROLES)}
        self.answer_start, self.answer_end = chr(base + _ANSWER_START), chr(base + _ANSWER_END)
        self._plain = {ord(placeholder): c for placeholder, c in self.originals.items()}

    def protect(self, value: Any) -> Any:
        """A JSON value with placeholders in all of its texts."""
        if isinstance(value, str):
            return value.translate(self._encoding)
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        return [self.protect(item) for item in value] if isinstance(value, list) else value

    def restore(self, value: Any) -> Any:
        """A value with the original characters in place of their placeholders."""
        if isinstance(value, str):
            return value if value.isascii() else value.translate(self._plain)
        if isinstance(value, dict):
            return {self.restore(key): self.restore(item) for key, item in value.items()}
        return type(value)(map(self.restore, value)) if type(value) in (list, tuple) else value


def choose_placeholders(*values: Any) -> Placeholders | None:
    """Placeholders that do not occur in JSON values; None if the values leave no block of them."""
    used = {ord(c) // _BLOCK_SIZE for text in _iter_texts(values) if not text.isascii() for c in set(text)}
    free = (block for block in range(_FIRST_BLOCK, _LAST_BLOCK) if block not in used)
    return next(map(Placeholders, free), None)


def _iter_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _iter_texts(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iter_texts(item)
