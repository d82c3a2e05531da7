"""Compare the languages of texts: by script, else by frequent words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from polyhead.core.i18n import tr
from polyhead.data.readers.files import is_text, iter_lines
from polyhead.tokenizers.languages import normalize_language, script_of_language
from polyhead.tokenizers.scripts import script_of_text, split_script_words

_MAX_SAMPLE = 1000  # lines that are read
_MAX_FILES = 16  # of one text that are compared
_N_FREQUENT_WORDS = 100  # frequent words that identify a language
_MIN_WORDS = 30  # of a text; with fewer, frequent words are not conclusive
_MIN_FREQUENT_SHARE = 0.15  # of the words of a text that must be frequent words of the detected language
BY_WORDS = "frequent words"
# the most frequent words of languages of one script, for texts of which only the code is known
_WORDS_OF_LANGUAGE = {
    code: frozenset(words.split())
    for code, words in {
        "de": "der die das und ist in den von zu mit ein eine nicht sich auf im dem für es er sie ich auch",
        "en": "the of and to a in is that it was for on with as are at by this be you he his not they",
        "es": "el la los las de y en que es un una por con para del al no se su lo como más está",
        "fr": "le la les de des et est un une dans que qui en pour du il au pas sur ne se ce avec je",
        "it": "il la le di e è che un una in per del con non della sono gli si da dei ha al lo",
        "nl": "de het een en van is in te dat op zijn met voor niet aan er om ook als die naar",
        "pl": "w na i z do nie się jest to że o jak po od za przez dla są co ale ma tak",
        "pt": "o a os as de e em que é um uma do da no na para com não por se mais dos ao",
        "ru": "в и на не что с по это я он как а у из за от его все то для был она",
        "sv": "och i att en det som är på av för med den till ett om har de inte han hon",
        "uk": "в і на не що з до це у та як за від його є й про для був вона але",
    }.items()
}
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
    """Estimate the language of texts; without texts, script and words follow from the language code."""
    if not texts:
        words = _WORDS_OF_LANGUAGE.get(normalize_language(code), frozenset())
        return Language(script_of_language(code), words, code)
    frequent = Counter(_split_words(texts)).most_common(_N_FREQUENT_WORDS)
    return Language(script_of_text(texts), frozenset(word for word, _ in frequent), code)


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


def describe_mixed_languages(paths: Sequence[Path]) -> str:
    """A warning if one of the first plain text files is in another language than the first; "" if not."""
    first = read_first_lines(paths[0])
    unlike = (path for path in paths[1:_MAX_FILES] if are_unrelated(first, read_first_lines(path)))
    if (other := next(unlike, None)) is None:
        return ""
    return tr(
        "{one} and {other} are in different languages, and one model learns both as plain text; two sides of "
        "translations are for task translation",
        one=paths[0].name,
        other=other.name,
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
