"""Detect decomposed characters (NFD), such as é written as e and an accent, which are other tokens than é."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from polyhead.core.i18n import tr
from polyhead.tokenizers.tokenizer import Tokenizer

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
