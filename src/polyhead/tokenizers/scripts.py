"""Detect the script of a text by Unicode names."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby

import regex

from polyhead.tokenizers.graphemes import split_graphemes

_LETTERS = regex.compile(r"[^\W\d_]+")  # with their combining marks
_MIN_WORDS = 5  # minimum number of words (characters in scripts without spaces) to detect a script
CLEAR_SHARE = 0.8
# first words of Unicode letter names that are not the name of the script
_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han", "NEW": "Tai"}
KANA = ("Hiragana", "Katakana")
# scripts in which no spaces separate words (Unicode, annex 14: complex context, ideographs, aksaras)
UNSPACED_SCRIPTS = (
    "Japanese", "Han", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Tai", "Yi", "Javanese", "Balinese",
)  # fmt: skip
_CHARACTER_SCRIPTS = frozenset((*UNSPACED_SCRIPTS, *KANA))  # each character counts as a word
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
        for script in ("Han", *KANA):
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


def split_script_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield the script and the letters of each word; in scripts without spaces, of each grapheme cluster."""
    for word in _LETTERS.findall(text):
        for script, clusters in groupby(split_graphemes(word), lambda cluster: script_of_letter(cluster[0])):
            if script in _CHARACTER_SCRIPTS:
                yield from ((script, cluster) for cluster in clusters)
            else:
                yield script, "".join(clusters)


def _count_words(texts: Iterable[str]) -> Counter[str]:
    return Counter(
        script
        for text in texts
        for script, word in split_script_words(text)
        if script in _CHARACTER_SCRIPTS or not word[0].isupper()
    )
