"""Characters and words of many scripts, next to what their readers count and to Unicode's categories."""

from __future__ import annotations

import unicodedata

import pytest

from polyhead.tokenizers.graphemes import (
    continues_grapheme,
    fold_text,
    is_unspaced_char,
    split_graphemes,
    split_words,
)

WORDS = {
    "The dog's, e\u0301té!": ["The", "dog", "'", "s", ",", "e\u0301té", "!"],
    "हिन्दी में कुत्ते।": ["हिन्दी", "में", "कुत्ते", "।"],
    "தமிழ் நாய்கள்": ["தமிழ்", "நாய்கள்"],
    "বাংলা কুকুর": ["বাংলা", "কুকুর"],
    "می\u200cروم": ["می\u200cروم"],
    "น้ำใจ 20": ["น้ำ", "ใ", "จ", "20"],
    "ຂ້ອຍມັກ": ["ຂ້", "ອ", "ຍ", "ມັ", "ກ"],
    "ខ្ញុំមាន": ["ខ្ញុំ", "មា", "ន"],
    "မြန်မာ": ["မြ", "န်", "မာ"],
    "我爱ABC狗カー": ["我", "爱", "ABC", "狗", "カ", "ー"],
}


@pytest.mark.parametrize("text", WORDS)
def test_words_are_those_of_the_script(text: str) -> None:
    assert split_words(text) == WORDS[text]


@pytest.mark.parametrize("text", WORDS)
def test_no_character_begins_with_a_mark(text: str) -> None:
    clusters = split_graphemes(text)
    assert "".join(clusters) == text
    assert not [cluster for cluster in clusters if unicodedata.category(cluster[0])[0] == "M"]
    marks = {c for c in text if unicodedata.category(c) in ("Mn", "Me")}
    assert all(map(continues_grapheme, marks))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Käse", "KA\u0308SE"),
        ("が", "か\u3099"),
        ("co\u00adop", "coop"),
        ("Straße", "STRASSE"),
        ("ខ្ញុំ\u200bមាន", "ខ្ញុំ មាន"),
        ("\u0958", "\u0915\u093c"),
    ],
)
def test_equal_texts_fold_to_one(one: str, other: str) -> None:
    assert one != other and fold_text(one) == fold_text(other)
    assert fold_text("Kase") != fold_text("Käse")


@pytest.mark.parametrize("prefix", ["CJK UNIFIED", "HIRAGANA LETTER", "KATAKANA LETTER", "THAI CHARACTER",
    "LAO LETTER", "KHMER LETTER", "MYANMAR LETTER", "TIBETAN LETTER", "YI SYLLABLE",
    "NEW TAI LUE LETTER"])  # fmt: skip
def test_scripts_without_spaces(prefix: str) -> None:
    letters = [chr(i) for i in range(0x20000) if unicodedata.name(chr(i), "").startswith(prefix)]
    assert letters and all(map(is_unspaced_char, letters))


def test_scripts_with_spaces() -> None:
    assert not any(map(is_unspaced_char, "aéжαक한ع中"[:-1])) and is_unspaced_char("中")
