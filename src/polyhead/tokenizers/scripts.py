"""Detect the script of a text by Unicode names."""

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
_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han", "NEW": "Tai"}
KANA = ("Hiragana", "Katakana")
# scripts without spaces between words: each character counts as a word
SCRIPTS_WITHOUT_SPACES = ("Han", *KANA)
# scripts in which no spaces separate words (Unicode, annex 14: complex context, ideographs, aksaras)
UNSPACED_SCRIPTS = (
    "Japanese", "Han", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Tai", "Yi", "Javanese", "Balinese",
)  # fmt: skip
_MIN_UNSPACED_SHARE = 0.3  # of the letters: a Chinese text has names in Latin letters


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


def find_unspaced_script(texts: Iterable[str]) -> str:
    """The script without spaces between words that has more than 30 % of the letters; "" if none has.

    Han characters in a text with kana count as Japanese.
    """
    letters = Counter("".join(texts))
    counts: Counter[str] = Counter()
    for letter, count in letters.items():
        if letter.isalpha():
            counts[script_of_letter(letter)] += count
    total, kana = counts.total(), sum(counts[script] for script in KANA)
    if kana >= 0.1 * (kana + counts["Han"]) > 0:
        counts["Japanese"] = kana + counts["Han"]
    shares = {script: counts[script] for script in UNSPACED_SCRIPTS}
    script = max(shares, key=lambda name: shares[name])
    return script if shares[script] > _MIN_UNSPACED_SHARE * total else ""


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
