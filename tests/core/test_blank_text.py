import unicodedata

import regex

from polyhead.core.blank_text import clear_blank, is_blank

INVISIBLE = regex.compile(r"[\p{White_Space}\p{Z}\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\u2800]")
VISIBLE = regex.compile(r"\p{Prepended_Concatenation_Mark}")


def test_blank_characters_are_those_of_unicode():
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) == "Cn" and not 0xE0000 <= code < 0xE1000:
            continue  # assigned in another version of Unicode
        expected = bool(INVISIBLE.match(character)) and not VISIBLE.match(character)
        assert is_blank(character) is expected, f"U+{code:04X}"
    codes = "1 1b 7f 85 ad 34f 61c 115f 1160 17b4 180b 180e 200b 200c 200d 200e 200f 202a 202e 2060 2061 "
    codes += "2066 2069 2800 3164 fe0e fe0f feff ffa0 e0001 e0100"
    for character in (chr(int(code, 16)) for code in codes.split()):
        for text in (character, f" {character}\t{character}\u3000"):
            assert is_blank(text) and clear_blank(text) == ""
            assert clear_blank(f"{text}a") == f"{text}a"
    assert is_blank("") and is_blank(" \t\r\n")
    for text in ("a", "你", "ก", "\u0301", "\ufffd", "\u06dd", "👍\ufe0f", ".", "\ue000"):
        assert not is_blank(text) and clear_blank(text) == text
