"""Text without a visible character, next to the properties of Unicode."""

from __future__ import annotations

import unicodedata

import pytest
import regex

from polyhead.core.blank_text import clear_blank, is_blank

UNSEEN = regex.compile(r"[\p{White_Space}\p{Z}\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\u2800]")
SEEN = regex.compile(r"\p{Prepended_Concatenation_Mark}")


def test_a_character_is_blank_exactly_where_unicode_says_that_nothing_is_seen() -> None:
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) == "Cn" and not 0xE0000 <= code < 0xE1000:
            continue  # assigned in another version of Unicode
        wanted = bool(UNSEEN.match(character)) and not SEEN.match(character)
        assert is_blank(character) is wanted, f"U+{code:04X}"


@pytest.mark.parametrize(
    "code",
    [
        *(0x01, 0x1B, 0x7F, 0x85, 0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x180B, 0x180E, 0x200B, 0x200C),
        *(0x200D, 0x200E, 0x200F, 0x202A, 0x202E, 0x2060, 0x2061, 0x2066, 0x2069, 0x2800, 0x3164, 0xFE0E),
        *(0xFE0F, 0xFEFF, 0xFFA0, 0xE0001, 0xE0100),
    ],
)
def test_invisible_characters_are_blank_alone_and_among_spaces(code: int) -> None:
    for text in (chr(code), f" {chr(code)}\t{chr(code)}\u3000"):
        assert is_blank(text)
        assert clear_blank(text) == ""
        assert clear_blank(f"{text}a") == f"{text}a"


@pytest.mark.parametrize("text", ["a", "你", "ก", "\u0301", "\ufffd", "\u06dd", "👍\ufe0f", ".", "\ue000"])
def test_visible_text_is_not_blank(text: str) -> None:
    assert not is_blank(text)
    assert clear_blank(text) == text


def test_no_text_is_blank() -> None:
    assert is_blank("") and is_blank(" \t\r\n")
