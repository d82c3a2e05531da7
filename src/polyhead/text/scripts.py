"""The script a text is written in, by Unicode, and the scripts of languages."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import groupby

WORD = re.compile(r"[^\W\d_]+")
LEAST_WORDS = 5  # words, or characters of Chinese and Japanese; of fewer nothing is concluded
CLEAR_SHARE = 0.8
# first words of the Unicode names of letters, where they are not the script's own name
_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han"}
KANA = ("Hiragana", "Katakana")
# scripts whose words have no blanks between them: each character counts as a word
UNSPACED = ("Han", *KANA)
_CODES = {
    "Latn": "Latin", "Hans": "Han", "Hant": "Han", "Hani": "Han", "Jpan": "Japanese", "Kore": "Hangul", "Hang": "Hangul",
    "Cyrl": "Cyrillic", "Arab": "Arabic", "Grek": "Greek", "Hebr": "Hebrew", "Deva": "Devanagari", "Beng": "Bengali",
    "Thai": "Thai", "Taml": "Tamil", "Telu": "Telugu", "Armn": "Armenian", "Geor": "Georgian",
}  # fmt: skip
"""Scripts by their codes of ISO 15924, as in zh-Hant."""
# languages that are usually written in one script; those of several (sr, uz, az, kk, mn, pa, ku) are left out
LANGUAGES = {
    "Latin": "af ca cs cy da de en eo es et eu fi fr ga gl hr ht hu id is it la lt lv mt nb nl nn no pl pt ro sk sl so sq "
             "sv sw tr vi xh yo zu",
    "Han": "zh", "Japanese": "ja", "Hangul": "ko", "Cyrillic": "be bg mk ru uk", "Arabic": "ar fa ps ur", "Greek": "el",
    "Hebrew": "he yi", "Devanagari": "hi mr ne", "Bengali": "as bn", "Thai": "th", "Tamil": "ta", "Telugu": "te",
    "Armenian": "hy", "Georgian": "ka", "Khmer": "km", "Kannada": "kn", "Lao": "lo", "Malayalam": "ml", "Myanmar": "my",
    "Gujarati": "gu", "Sinhala": "si", "Ethiopic": "am ti",
}  # fmt: skip
_SCRIPTS = {code: script for script, codes in LANGUAGES.items() for code in codes.split()}


@cache
def script_of_letter(letter: str) -> str:
    """The name of a letter's script: Latin, Han, Cyrillic."""
    # without width, style and what is joined to it
    parts = unicodedata.normalize("NFKC", letter)
    plain = [one for one in parts if unicodedata.category(one) in ("Lu", "Ll", "Lo")] or [letter]
    first = re.split("[ -]", unicodedata.name(plain[-1], "UNKNOWN"))[0]
    return _NAMES.get(first, first.capitalize())


def script_of_text(texts: Iterable[str]) -> str:
    """The script of four fifths of the words; empty for a text of few words, of numbers or of several scripts.

    Capitalized words count nothing, because names are the same in texts of many languages. Chinese characters between kana
    are Japanese.
    """
    counts = _count_words(texts)
    kana = sum(counts[script] for script in KANA)
    if kana >= 0.1 * (kana + counts["Han"]) > 0:
        counts["Japanese"] = kana + counts["Han"]
        for script in UNSPACED:
            del counts[script]
    total = counts.total()
    if total < LEAST_WORDS:
        return ""
    script, count = counts.most_common(1)[0]
    return script if count >= CLEAR_SHARE * total else ""


def script_of_language(code: str) -> str:
    """The script of a language: Han for zh, zh_CN and zho_Hans; empty where none is known, or there are several."""
    language, *tags = re.split(r"[-_]", code.strip("_<>"))
    for tag in tags:
        if len(tag) == 4 and tag.isalpha():
            return _CODES.get(tag.capitalize(), "")
    return _SCRIPTS.get(language.lower(), "")


def _count_words(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        for word in WORD.findall(text):
            for script, letters in groupby(word, script_of_letter):
                run = list(letters)
                if script in UNSPACED:
                    counts[script] += len(run)
                elif not run[0].isupper():
                    counts[script] += 1
    return counts
