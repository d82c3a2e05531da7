"""Grapheme clusters and words of a text (Unicode, annex 29), also in scripts without spaces between words."""

from __future__ import annotations

import unicodedata

import regex

# character classes of the scripts in ``scripts.UNSPACED_SCRIPTS``, and the long vowel mark of kana
UNSPACED_CLASSES = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\uff70\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Tai_Le}"
    r"\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}\p{Yi}\p{Javanese}\p{Balinese}"
)
_UNSPACED_CHARACTER = regex.compile(f"[{UNSPACED_CLASSES}]")
_CLUSTER = regex.compile(r"\X\p{M}*")  # Burmese has marks outside of clusters
_WORD = regex.compile(rf"(?V1)(?=[{UNSPACED_CLASSES}])\X\p{{M}}*|[\w--[{UNSPACED_CLASSES}]]+|[^\w\s]\p{{M}}*")
_CONTINUES_CLUSTER = regex.compile(
    r"[\p{GCB=Extend}\p{GCB=SpacingMark}\p{GCB=ZWJ}\p{GCB=Regional_Indicator}]"
)
_BREAK = regex.compile("\u200b+")  # zero width space: a line may break there, mostly between words
_FORMAT = regex.compile(r"\p{Cf}+")


def split_graphemes(text: str) -> list[str]:
    """The characters of a text as a reader counts them: each with its combining marks."""
    return _CLUSTER.findall(text)


def split_words(text: str) -> list[str]:
    """The words and punctuation marks of a text; in scripts without spaces, its grapheme clusters."""
    return _WORD.findall(text)


def fold_text(text: str) -> str:
    """A text for comparison: equal for NFC and NFD, for upper and lower case, and with format characters."""
    plain = _FORMAT.sub("", _BREAK.sub(" ", text))
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", plain).casefold())


def is_unspaced_char(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return character >= "\u0e00" and _UNSPACED_CHARACTER.match(character) is not None


def continues_grapheme(character: str) -> bool:
    """Whether a character may belong to the grapheme cluster of the one before it."""
    return not character.isascii() and _CONTINUES_CLUSTER.match(character) is not None
