"""What tells the language of a text from another: its script, and else its frequent words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path

from polyhead.data.corpus import Corpus, CorpusReport
from polyhead.data.files import is_text, lines
from polyhead.errors import UserError
from polyhead.text.scripts import UNSPACED, WORD, script_of_language, script_of_letter, script_of_text

SAMPLE = 1000  # pairs or lines that are read
FREQUENT = 100  # words that a language is known by
LEAST_WORDS = 30  # of a text; of fewer the frequent words say nothing
LEAST_SHARE = 0.15  # of its words, that must be frequent ones of the language that it is taken for
BY_WORDS = "frequent words"
FOREIGN_SHARE = 0.12  # texts of one language have a third of their words in common, English and German a 15th
MORE_OFTEN = 4  # times as many as are frequent ones of the other language


@dataclass(frozen=True)
class Language:
    """A language as a sample of its text shows it."""

    script: str = ""
    words: frozenset[str] = frozenset()  # the frequent ones
    code: str = ""

    @property
    def name(self) -> str:
        """The code if there is one, else the script: "zh", "Han script"."""
        return self.code or (f"{self.script} script" if self.script else "")


def describe_language(texts: Sequence[str], code: str = "") -> Language:
    """The language of some texts; without texts that of its code."""
    if not texts:
        return Language(script_of_language(code), frozenset(), code)
    frequent = Counter(_words(texts)).most_common(FREQUENT)
    return Language(script_of_text(texts), frozenset(word for word, _ in frequent), code)


def sample_pairs(corpus: Corpus) -> tuple[list[str], list[str]]:
    """The sources and targets of the first pairs; none where they cannot be read, which is reported elsewhere."""
    try:
        pairs = list(islice(corpus.pairs(CorpusReport(corpus.where)), SAMPLE))
    except UserError:
        return [], []
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def find_mistaken(texts: Sequence[str], own: Language, other: Language) -> str:
    """What shows that a text is in another language than its own: "Han script" or ``BY_WORDS``; empty if nothing does."""
    if own.script and other.script and own.script != other.script:
        return f"{other.script} script" if script_of_text(texts) == other.script else ""
    words = list(_words(texts))
    if len(words) < LEAST_WORDS or not own.words or not other.words:
        return ""
    like_own = sum(word in own.words - other.words for word in words)
    like_other = sum(word in other.words - own.words for word in words)
    mistaken = like_other >= LEAST_SHARE * len(words) and like_other >= MORE_OFTEN * like_own
    return BY_WORDS if mistaken else ""


def are_foreign(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two texts are in languages that are not even related: by their scripts, else by their frequent words."""
    languages = describe_language(one), describe_language(other)
    if all(language.script for language in languages) and languages[0].script != languages[1].script:
        return True
    if min(len(language.words) for language in languages) < FREQUENT:
        return False
    return max(_share(one, languages[1]), _share(other, languages[0])) < FOREIGN_SHARE


def _share(texts: Sequence[str], language: Language) -> float:
    """The share of the words of some texts that are frequent ones of a language."""
    words = list(_words(texts))
    return sum(word in language.words for word in words) / len(words)


def first_lines(path: Path) -> list[str]:
    """The first lines of a plain text file that are UTF-8."""
    return [line.decode() for line in islice(lines(path), SAMPLE) if line is not None and is_text(line)]


def _words(texts: Iterable[str]) -> Iterable[str]:
    """Words in small letters; of Chinese and Japanese each character."""
    for word in chain.from_iterable(map(WORD.findall, texts)):
        for script, letters in groupby(word.lower(), script_of_letter):
            run = "".join(letters)
            yield from run if script in UNSPACED else (run,)
