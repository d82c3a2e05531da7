"""Compare the languages of texts: by script, else by frequent words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from polyhead.core.errors import UserError
from polyhead.data.readers.files import is_text, iter_lines
from polyhead.data.readers.parallel_corpus import ParallelFiles
from polyhead.tokenizers.languages import script_of_language
from polyhead.tokenizers.scripts import script_of_text, split_script_words

_MAX_SAMPLE = 1000  # pairs or lines that are read
_N_FREQUENT_WORDS = 100  # frequent words that identify a language
_MIN_WORDS = 30  # of a text; with fewer, frequent words are not conclusive
_MIN_FREQUENT_SHARE = 0.15  # of the words of a text that must be frequent words of the detected language
BY_WORDS = "frequent words"
# texts of one language have a third of their words in common, English and German a 15th
_MAX_FOREIGN_SHARE = 0.12
_MIN_OTHER_RATIO = 4  # frequent words of the detected language / those of the expected one


@dataclass(frozen=True)
class Language:
    """A language as estimated from a sample of text."""

    script: str = ""
    words: frozenset[str] = frozenset()  # the most frequent words
    code: str = ""

    @property
    def name(self) -> str:
        """The code if there is one, else the script: "zh", "Han script"."""
        return self.code or (f"{self.script} script" if self.script else "")


def describe_language(texts: Sequence[str], code: str = "") -> Language:
    """Estimate the language of texts; without texts, the script follows from the language code."""
    if not texts:
        return Language(script_of_language(code), frozenset(), code)
    frequent = Counter(_split_words(texts)).most_common(_N_FREQUENT_WORDS)
    return Language(script_of_text(texts), frozenset(word for word, _ in frequent), code)


def sample_pairs(corpus: ParallelFiles) -> tuple[list[str], list[str]]:
    """(sources, targets) of the first pairs; empty if they cannot be read, which is reported elsewhere."""
    try:
        pairs = list(islice(corpus.iter_pairs(), _MAX_SAMPLE))
    except UserError:
        return [], []
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def detect_wrong_language(texts: Sequence[str], expected: Language, other: Language) -> str:
    """Evidence that texts are in the ``other`` language: "Han script" or ``BY_WORDS``; else ""."""
    if expected.script and other.script and expected.script != other.script:
        return f"{other.script} script" if script_of_text(texts) == other.script else ""
    words = list(_split_words(texts))
    if len(words) < _MIN_WORDS or not expected.words or not other.words:
        return ""
    like_own = sum(word in expected.words - other.words for word in words)
    like_other = sum(word in other.words - expected.words for word in words)
    mistaken = like_other >= _MIN_FREQUENT_SHARE * len(words) and like_other >= _MIN_OTHER_RATIO * like_own
    return BY_WORDS if mistaken else ""


def are_unrelated(texts: Sequence[str], other_texts: Sequence[str]) -> bool:
    """Whether two texts are in unrelated languages, by their scripts, else by their frequent words."""
    languages = describe_language(texts), describe_language(other_texts)
    if all(language.script for language in languages) and languages[0].script != languages[1].script:
        return True
    if min(len(language.words) for language in languages) < _N_FREQUENT_WORDS:
        return False
    return (
        max(_frequent_share(texts, languages[1]), _frequent_share(other_texts, languages[0]))
        < _MAX_FOREIGN_SHARE
    )


def _frequent_share(texts: Sequence[str], language: Language) -> float:
    """The fraction of the words of texts that are frequent words of a language."""
    words = list(_split_words(texts))
    return sum(word in language.words for word in words) / len(words)


def read_first_lines(path: Path) -> list[str]:
    """The first lines of a plain text file that are UTF-8."""
    return [
        line.decode() for line in islice(iter_lines(path), _MAX_SAMPLE) if line is not None and is_text(line)
    ]


def _split_words(texts: Iterable[str]) -> Iterable[str]:
    """Split texts into lower-case words; in scripts without spaces, into characters."""
    for text in texts:
        yield from (word for _, word in split_script_words(text.lower()))
