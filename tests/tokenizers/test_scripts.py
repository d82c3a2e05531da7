"""The script of a letter, of a text and of a language, beside Unicode's and CLDR's own tables."""

from __future__ import annotations

import re
import unicodedata

import pytest
import regex
from babel.core import get_global

from polyhead.tokenizers.scripts import (
    _SCRIPT_LANGUAGES,
    script_of_language,
    script_of_letter,
    script_of_text,
)

CODES = {
    "Latn": "Latin", "Hans": "Han", "Jpan": "Japanese", "Kore": "Hangul", "Cyrl": "Cyrillic", "Arab": "Arabic",
    "Grek": "Greek", "Hebr": "Hebrew", "Deva": "Devanagari", "Beng": "Bengali", "Thai": "Thai", "Taml": "Tamil",
    "Telu": "Telugu", "Armn": "Armenian", "Geor": "Georgian", "Khmr": "Khmer", "Knda": "Kannada", "Laoo": "Lao",
    "Mlym": "Malayalam", "Mymr": "Myanmar", "Gujr": "Gujarati", "Sinh": "Sinhala", "Ethi": "Ethiopic",
}  # fmt: skip


@pytest.mark.parametrize(
    "script", ["Latin", "Han", "Cyrillic", "Hangul", "Arabic", "Hiragana", "Greek", "Thai"]
)
def test_letters_have_the_script_that_unicode_gives_them(script: str) -> None:
    in_script = regex.compile(rf"\p{{Script={script}}}")
    names = {chr(i): unicodedata.name(chr(i), "") for i in range(0x10000)}
    # not the signs of old inscriptions, LATIN EPIGRAPHIC LETTER REVERSED F and ROMAN NUMERAL FIVE HUNDRED
    usual = [
        letter
        for letter, name in names.items()
        if re.match(r"(?!MODIFIER)\w+ (\w+ )*(LETTER|SYLLABLE|IDEOGRAPH|CHARACTER)\b", name)
    ]
    letters = [letter for letter in usual if in_script.fullmatch(letter) and letter.isalpha()]
    assert len(letters) > 50
    for letter in letters:
        assert script_of_letter(letter) == script, names[letter]


@pytest.mark.parametrize("language", " ".join(_SCRIPT_LANGUAGES.values()).split())
def test_languages_have_the_script_that_cldr_gives_them(language: str) -> None:
    code = get_global("likely_subtags")[language].split("_")[1]
    assert script_of_language(language) == CODES[code]


@pytest.mark.parametrize(
    ("code", "script"),
    [
        ("zh-CN", "Han"), ("zh_Latn", "Latin"), ("zho_Hans", "Han"), ("en_XX", "Latin"), (">>de<<", "Latin"), ("__ru__", "Cyrillic"),
        ("", ""), ("xx", ""), ("sr", ""), ("sr-Cyrl", "Cyrillic"), ("EN", "Latin"),
    ],
)  # fmt: skip
def test_codes_of_languages_in_all_spellings(code: str, script: str) -> None:
    assert script_of_language(code) == script


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("a dog barks at the door", "Latin"),
        ("собака лает у самой двери", "Cyrillic"),
        ("一只狗在门口叫", "Han"),
        ("犬がドアのところで吠えている", "Japanese"),
        ("개가 문 앞에서 짖고 있다", "Hangul"),
        ("كلب ينبح عند باب البيت", "Arabic"),
        ("我喜欢用 PyTorch 和 TensorFlow 训练", "Han"),
        ("12 000 € (2024), 3:1", ""),
        ("PyTorch Windows Server Hugging Face NVIDIA", ""),  # names are the same in every language
        ("一只狗 a dog barks loudly", ""),
        ("OK", ""),
        ("", ""),
    ],
)
def test_a_text_has_the_script_of_most_of_its_words(text: str, script: str) -> None:
    assert script_of_text([text]) == script
