"""Detect text in which nothing is visible."""

from __future__ import annotations

import unicodedata

_INVISIBLE_CATEGORIES = ("Zs", "Zl", "Zp", "Cc", "Cf")  # separators, control and format characters
# format characters with a glyph: number and verse signs (Unicode, Prepended_Concatenation_Mark)
_VISIBLE_FORMATS = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
# of other categories: joiner, fillers, inherent vowels, braille blank, variation selectors, reserved codes
_INVISIBLE_RANGES = (
    (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2065, 0x2065),
    (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8),
    (0xE0000, 0xE0FFF),
)  # fmt: skip


def is_blank(text: str) -> bool:
    """Whether a text has no visible characters: whitespace, control and format characters, and fillers."""
    return not text.strip() or all(map(_is_invisible, text))


def clear_blank(text: str) -> str:
    """The text, or "" if it is blank."""
    return "" if is_blank(text) else text


def _is_invisible(character: str) -> bool:
    if unicodedata.category(character) in _INVISIBLE_CATEGORIES:
        return character not in _VISIBLE_FORMATS
    return any(first <= ord(character) <= last for first, last in _INVISIBLE_RANGES)
