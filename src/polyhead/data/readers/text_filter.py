"""The rules by which the texts of a corpus are used."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from polyhead.data.readers.detect_language import describe_language
from polyhead.tokenizers.scripts import KANA, script_of_letter, split_script_words

_JAPANESE = {"Han", *KANA}
_MIN_OTHER_WORDS = 2  # frequent words of another language, and none of the own one, of a text that is in it


class TextRules(NamedTuple):
    """By which rules the texts of a corpus are used; lengths are in characters."""

    min_chars: int | None = None
    max_chars: int | None = None
    max_ratio: float | None = None  # the longer side of a pair / the shorter
    unique: bool = False
    languages: tuple[str, ...] | None = None  # the code of each side; None: not checked
    max_texts: int | None = None


NO_RULES = TextRules()


class TextFilter:
    """Finds the texts that pass the rules, in one pass over a corpus; counts the others by rule."""

    def __init__(self, rules: TextRules, n_filtered: dict[str, int]) -> None:
        self.rules, self.n_filtered, self.n_used = rules, n_filtered, 0
        self._hashes: set[bytes] = set()

    @property
    def is_full(self) -> bool:
        """Whether ``max_texts`` are used."""
        return self.n_used == self.rules.max_texts

    def accepts(self, *sides: str) -> bool:
        """Whether a text, or a pair of texts, passes all rules."""
        rule = "" if self.rules == NO_RULES else self._find_broken_rule(sides)
        if rule:
            self.n_filtered[rule] = self.n_filtered.get(rule, 0) + 1
        self.n_used += not rule
        return not rule

    def _find_broken_rule(self, sides: Sequence[str]) -> str:
        rules, lengths = self.rules, [len(side.strip()) for side in sides]
        if rules.min_chars is not None and min(lengths) < rules.min_chars:
            return "min_chars"
        if rules.max_chars is not None and max(lengths) > rules.max_chars:
            return "max_chars"
        if rules.max_ratio is not None and max(lengths) > rules.max_ratio * min(lengths):
            return "max_ratio"
        if rules.languages is not None and not are_in_languages(sides, rules.languages):
            return "language"
        if rules.unique:
            words = "\0".join(" ".join(side.split()) for side in sides)
            digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
            if digest in self._hashes:
                return "unique"
            self._hashes.add(digest)
        return ""


def are_in_languages(sides: Sequence[str], languages: Sequence[str]) -> bool:
    """Whether no side is clearly in another language than that of its code, and the sides differ.

    Half of the letters of a side, or more, must be in the script of its language. A side with two or more
    frequent words of the other side's language must have one of its own, where these words are known.
    """
    if len(sides) == 2 and sides[0].split() == sides[1].split():
        return False
    expected = [describe_language([], code) for code in languages]
    for side, own, other in zip(sides, expected, reversed(expected), strict=True):
        scripts = [script_of_letter(letter) for letter in side if letter.isalpha()]
        accepted = _JAPANESE if own.script == "Japanese" else {own.script}
        if own.script and 2 * sum(script in accepted for script in scripts) < len(scripts):
            return False
        words = {word for _, word in split_script_words(side.lower())}
        n_other = len(words & (other.words - own.words))
        if own.words and n_other >= _MIN_OTHER_WORDS and not words & (own.words - other.words):
            return False
    return True
