"""Properties of Unicode text: its script, its graphemes, and characters that are decomposed."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import TypeVar

import regex

from polyhead.core.i18n import tr
from polyhead.tokenizers.tokenizer import Tokenizer

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
    counts = _merge_japanese(_count_words(texts))
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
    counts = _merge_japanese(counts)
    script = max(UNSPACED_SCRIPTS, key=lambda name: counts[name])
    return script if counts[script] > _MIN_UNSPACED_SHARE * counts.total() else ""


def _merge_japanese(counts: Counter[str]) -> Counter[str]:
    """The counts, in which Han and kana are Japanese if a tenth of them or more is kana."""
    kana = sum(counts[script] for script in KANA)
    if kana >= 0.1 * (kana + counts["Han"]) > 0:
        counts["Japanese"] = kana + counts["Han"]
        for script in ("Han", *KANA):
            del counts[script]
    return counts


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


# character classes of the scripts in ``scripts.UNSPACED_SCRIPTS``, and the long vowel mark of kana
UNSPACED_CLASSES = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\uff70\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Tai_Le}"
    r"\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}\p{Yi}\p{Javanese}\p{Balinese}"
)
_UNSPACED_CHARACTER = regex.compile(f"[{UNSPACED_CLASSES}]")
_CLUSTER = regex.compile(r"\X\p{M}*")  # Burmese has marks outside of clusters
_WORD = regex.compile(
    rf"(?V1)(?=[{UNSPACED_CLASSES}])\X\p{{M}}*|[\w--[{UNSPACED_CLASSES}]]+|(?=[^\w\s])\X\p{{M}}*"
)
# words as aligned: each character of a script without spaces is one
_ALIGNED_CLASSES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Yi}"
_ALIGNED_WORD = regex.compile(rf"[{_ALIGNED_CLASSES}]|[^\s{_ALIGNED_CLASSES}]+")
_CONTINUES_CLUSTER = regex.compile(
    r"[\p{GCB=Extend}\p{GCB=SpacingMark}\p{GCB=ZWJ}\p{GCB=Regional_Indicator}]"
)
_BREAK = regex.compile("\u200b+")  # zero width space: a line may break there, mostly between words
# format characters except those inside an emoji (joiners and tags), Arabic elongation, and glyph variants
_FORMAT = regex.compile(
    r"(?V1)(?!\u200d\p{Extended_Pictographic})[\p{Cf}\u0640\ufe00-\ufe0f\U000e0100-\U000e01ef--\U000e0020-\U000e007f]"
)
_DOTTED_I = regex.compile("[Ii]\u0307")
_WIDTH = regex.compile("[\ufb50-\ufdff\ufe70-\ufefc\uff01-\uffee]+")  # full and half width, Arabic glyphs
_PLAIN_PUNCTUATION = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032\xb4`", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2043\u2212\ufe63", "-")
)


def split_graphemes(text: str) -> list[str]:
    """The characters of a text as a reader counts them: each with its combining marks."""
    return _CLUSTER.findall(text)


def split_words(text: str) -> list[str]:
    """The words and punctuation marks of a text; in scripts without spaces, its grapheme clusters."""
    return _WORD.findall(text)


def locate_words(text: str) -> list[tuple[int, int]]:
    """Where each of ``split_words`` starts and ends, in characters."""
    return [match.span() for match in _WORD.finditer(text)]


def find_words(text: str) -> list[tuple[int, int]]:
    """Start and end of each word: between white space; of scripts without spaces each character."""
    return [match.span() for match in _ALIGNED_WORD.finditer(text)]


def fold_text(text: str, upper_i: str = "i") -> str:
    """A text for comparison: equal for NFC and NFD, for upper and lower case, and with format characters.

    Also for straight and typographic apostrophes, quotes and hyphens, and for characters of other width.
    ``upper_i`` is the lower case of I: a dotless ı in Turkish; that of İ is i, with or without a dot.
    """
    plain = _FORMAT.sub("", _BREAK.sub(" ", text)).translate(_PLAIN_PUNCTUATION)
    plain = _WIDTH.sub(lambda match: unicodedata.normalize("NFKC", match[0]), plain)
    decomposed = _DOTTED_I.sub("i", unicodedata.normalize("NFD", plain)).replace("I", upper_i)
    return unicodedata.normalize("NFC", decomposed.casefold())


def is_unspaced_char(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return character >= "\u0e00" and _UNSPACED_CHARACTER.match(character) is not None


def continues_grapheme(character: str) -> bool:
    """Whether a character may belong to the grapheme cluster of the one before it."""
    return not character.isascii() and _CONTINUES_CLUSTER.match(character) is not None


T = TypeVar("T", bound=str | tuple[str, ...])


def is_decomposed(text: str) -> bool:
    """Whether a text has characters that NFC composes."""
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return False
    return len(unicodedata.normalize("NFC", text)) < len(text)


def warn_decomposed(items: Iterable[T], tokenizer: Tokenizer, warn: Callable[[str], None]) -> Iterator[T]:
    """Yield texts, or tuples of them, and warn of the first one that the tokenizer encodes as decomposed.

    Items are numbered from 1, as lines are.
    """
    is_silent = tokenizer.composes_characters
    for number, item in enumerate(items, 1):
        if not is_silent and any(map(is_decomposed, (item,) if isinstance(item, str) else item)):
            is_silent = True
            warn(
                tr(
                    "line {number:,} has decomposed characters (NFD), which are other tokens than composed "
                    "ones; if the model was trained on composed text, convert it: uconv -x nfc",
                    number=number,
                )
            )
        yield item


class DecomposedCounter:
    """Counts the texts with decomposed characters among those that pass through it."""

    def __init__(self) -> None:
        self.decomposed = self.total = 0

    def count(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the texts, and count them."""
        for text in texts:
            self.total += 1
            self.decomposed += is_decomposed(text)
            yield text

    def describe(self) -> str:
        """Describe the count and the remedy in the current language; "" if no text is decomposed."""
        if not self.decomposed:
            return ""
        return tr(
            "{count:,} of {total:,} training texts have decomposed characters (NFD), which are other tokens "
            "than composed ones: set tokenizer.kind.normalize to nfc, or convert the files: uconv -x nfc",
            count=self.decomposed,
            total=self.total,
        )
