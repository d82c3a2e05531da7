"""Language codes, next to CLDR's tables and the languages of NLLB."""

from __future__ import annotations

import pytest
from babel.core import get_global
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

from polyhead.tokenizers.language_codes import (
    _LANGUAGES,
    _SCRIPTS,
    _SCRIPTS_BY_TAG,
    is_same_language,
    normalize_language,
    script_of_language,
)
from polyhead.tokenizers.scripts import script_of_letter

LETTERS = {
    "Latin": "a", "Han": "\u4e00", "Hangul": "\uac00", "Cyrillic": "\u0434", "Arabic": "\u0628",
    "Greek": "\u03b1",
    "Hebrew": "\u05d0", "Devanagari": "\u0915", "Bengali": "\u0995", "Thai": "\u0e01", "Tamil": "\u0b95",
    "Telugu": "\u0c15", "Armenian": "\u0561", "Georgian": "\u10d0", "Khmer": "\u1780", "Lao": "\u0e81",
    "Myanmar": "\u1000", "Tibetan": "\u0f40", "Kannada": "\u0c95", "Malayalam": "\u0d15",
    "Gujarati": "\u0a95",
    "Gurmukhi": "\u0a15", "Oriya": "\u0b15", "Sinhala": "\u0d9a", "Ethiopic": "\u1200", "Thaana": "\u0780",
    "Meetei": "\uabc0", "Ol": "\u1c5a", "Tifinagh": "\u2d30", "Mongolian": "\u1820", "Yi": "\ua000",
    "Javanese": "\ua98f", "Balinese": "\u1b13", "Tai": "\u1a20",
}  # fmt: skip


def test_scripts_are_named_as_those_of_letters() -> None:
    assert {script_of_letter(letter): letter for letter in LETTERS.values()} == LETTERS
    assert set(_SCRIPTS_BY_TAG.values()) == {*LETTERS, "Japanese"}
    assert set(_SCRIPTS.values()) <= {*LETTERS, "Japanese", ""}


def test_a_language_has_the_script_that_cldr_gives_it() -> None:
    likely = get_global("likely_subtags")
    known = 0
    for language, script in _SCRIPTS.items():
        if script and language in likely:
            tag = likely[language].split("_")[1]
            assert script == _SCRIPTS_BY_TAG[tag], language
            known += 1
    assert known > 200


def test_alternative_codes_are_those_of_cldr() -> None:
    aliases = {code: name for code, name in get_global("language_aliases").items() if name in _SCRIPTS}
    three_letters = {code: name for code, name in aliases.items() if len(code) == 3 and len(name) == 2}
    wrong = {code: name for code, name in three_letters.items() if normalize_language(code) != name}
    assert wrong.keys() <= {"twi"}, "Twi has a code of its own, tw"
    assert len(three_letters) > 200


def test_every_language_of_iso_639_1_is_known() -> None:
    languages = {code for code in get_global("likely_subtags") if len(code) == 2}
    assert languages - _LANGUAGES.keys() <= {"ae", "cu"}  # of scriptures alone


@pytest.mark.parametrize("code", FAIRSEQ_LANGUAGE_CODES)
def test_codes_of_flores_have_the_script_of_their_tag_and_their_language_has_it_too(code: str) -> None:
    language, tag = code.split("_")
    assert script_of_language(code) == _SCRIPTS_BY_TAG[tag]
    n_scripts = sum(other.startswith(language) for other in FAIRSEQ_LANGUAGE_CODES)
    if script_of_language(language) and n_scripts == 1:
        assert script_of_language(language) == script_of_language(code)


@pytest.mark.parametrize(
    ("code", "script"),
    [
        ("zh-CN", "Han"), ("zh_Latn", "Latin"), ("zho_Hans", "Han"), ("en_XX", "Latin"), (">>de<<", "Latin"),
        ("__ru__", "Cyrillic"), ("", ""), ("xx", ""), ("sr", ""), ("sr-Cyrl", "Cyrillic"), ("EN", "Latin"),
        ("zho", "Han"), ("cmn", "Han"), ("cmn-Hant-TW", "Han"), ("yue", "Han"), ("chi", "Han"),
        ("jpn", "Japanese"),
        ("tha", "Thai"), ("lao", "Lao"), ("khm", "Khmer"), ("mya", "Myanmar"), ("bur", "Myanmar"),
        ("bod", "Tibetan"), ("Chinese", ""), (">>cmn_Hans<<", "Han"), ("deu_Latn", "Latin"),
    ],
)  # fmt: skip
def test_codes_of_languages_in_all_spellings(code: str, script: str) -> None:
    assert script_of_language(code) == script


def test_codes_of_one_language_are_one() -> None:
    chinese = ("zh", "zho", "chi", "cmn", "zh_CN", "ZH-Hant-TW", "zho_Hans", "__zh__", ">>cmn_Hans<<")
    assert {normalize_language(code) for code in chinese} == {"zh"}
    assert normalize_language("yue_Hant") == "yue" and normalize_language("xyz") == "xyz"
    assert is_same_language("deu", "de_DE") and is_same_language("zho_Hans", "zh")
    assert not is_same_language("pt_BR", "por_Latn") and not is_same_language("de", "en")
