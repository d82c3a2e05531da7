"""Detect the script of a text by Unicode names, and look up the script of a language."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import groupby

WORD_PATTERN = re.compile(r"[^\W\d_]+")
_MIN_WORDS = 5  # minimum number of words (characters in Chinese and Japanese) to detect a script
CLEAR_SHARE = 0.8
# first words of Unicode letter names that are not the name of the script
_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han"}
KANA = ("Hiragana", "Katakana")
# scripts without spaces between words: each character counts as a word
SCRIPTS_WITHOUT_SPACES = ("Han", *KANA)
_CODES = {
    "Latn": "Latin", "Hans": "Han", "Hant": "Han", "Hani": "Han", "Jpan": "Japanese", "Kore": "Hangul", "Hang": "Hangul",
    "Cyrl": "Cyrillic", "Arab": "Arabic", "Grek": "Greek", "Hebr": "Hebrew", "Deva": "Devanagari", "Beng": "Bengali",
    "Thai": "Thai", "Taml": "Tamil", "Telu": "Telugu", "Armn": "Armenian", "Geor": "Georgian",
}  # fmt: skip
"""ISO 15924 code -> script, as in zh-Hant."""
# languages usually written in one script; those with several (sr, uz, az, kk, mn, pa, ku) are omitted
_SCRIPT_LANGUAGES = {
    "Latin": "af ca cs cy da de en eo es et eu fi fr ga gl hr ht hu id is it la lt lv mt nb nl nn no pl pt ro sk sl so sq "
             "sv sw tr vi xh yo zu",
    "Han": "zh", "Japanese": "ja", "Hangul": "ko", "Cyrillic": "be bg mk ru uk", "Arabic": "ar fa ps ur", "Greek": "el",
    "Hebrew": "he yi", "Devanagari": "hi mr ne", "Bengali": "as bn", "Thai": "th", "Tamil": "ta", "Telugu": "te",
    "Armenian": "hy", "Georgian": "ka", "Khmer": "km", "Kannada": "kn", "Lao": "lo", "Malayalam": "ml", "Myanmar": "my",
    "Gujarati": "gu", "Sinhala": "si", "Ethiopic": "am ti",
}  # fmt: skip
_SCRIPTS = {code: script for script, codes in _SCRIPT_LANGUAGES.items() for code in codes.split()}


@cache
def script_of_letter(letter: str) -> str:
    """The script of a letter, such as Latin, Han or Cyrillic."""
    # NFKC removes width and style; combining characters are dropped
    parts = unicodedata.normalize("NFKC", letter)
    letters = [character for character in parts if unicodedata.category(character) in ("Lu", "Ll", "Lo")] or [
        letter
    ]
    name = re.split("[ -]", unicodedata.name(letters[-1], "UNKNOWN"))[0]
    return _NAMES.get(name, name.capitalize())


def script_of_text(texts: Iterable[str]) -> str:
    """The script of at least 80 % of the words; "" for few words, numbers or mixed scripts.

    Capitalized words are not counted, because names are the same in many languages. Han characters in a text
    with kana count as Japanese.
    """
    counts = _count_words(texts)
    kana = sum(counts[script] for script in KANA)
    if kana >= 0.1 * (kana + counts["Han"]) > 0:
        counts["Japanese"] = kana + counts["Han"]
        for script in SCRIPTS_WITHOUT_SPACES:
            del counts[script]
    total = counts.total()
    if total < _MIN_WORDS:
        return ""
    script, count = counts.most_common(1)[0]
    return script if count >= CLEAR_SHARE * total else ""


def script_of_language(code: str) -> str:
    """The script of a language: Han for zh, zh_CN and zho_Hans; "" if unknown or ambiguous."""
    language, *tags = re.split(r"[-_]", code.strip("_<>"))
    for tag in tags:
        if len(tag) == 4 and tag.isalpha():
            return _CODES.get(tag.capitalize(), "")
    return _SCRIPTS.get(language.lower(), "")


def _count_words(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        for word in WORD_PATTERN.findall(text):
            for script, letters in groupby(word, script_of_letter):
                run = list(letters)
                if script in SCRIPTS_WITHOUT_SPACES:
                    counts[script] += len(run)
                elif not run[0].isupper():
                    counts[script] += 1
    return counts
