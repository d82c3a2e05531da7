"""What words of a text must become in its translation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from polyhead.errors import UserError, show
from polyhead.text.tokenizer import Tokenizer
from polyhead.text.words import bytes_of, unspaced

WORD = re.compile(r"\w+|[^\w\s]")
BEFORE, BLANK = "x", " "  # a word that another one stands behind


class Phrase(NamedTuple):
    """A row of tokens that says something."""

    tokens: tuple[int, ...]
    first: bool = False  # whether it says so at the beginning of a text alone
    inside: Inside | None = None  # how other tokens are found to say it


class Inside(NamedTuple):
    """Finds what tokens say that hold more than that, as they do where words are not kept apart by blanks."""

    wanted: bytes
    said: Mapping[int, bytes]  # by each token

    def ends(self, row: Sequence[int]) -> bool:
        """Whether a row says it, and did not without its last token."""
        reach = len(self.wanted) - 1 + len(self.said[row[-1]]) if row else 0
        tail, i = b"", len(row)
        while i and len(tail) < reach:
            i -= 1
            tail = self.said[row[i]] + tail
        return self.wanted in tail[max(0, len(tail) - reach) :]


Term = tuple[Phrase, ...]
"""Ways of saying one thing."""
Entries = Mapping[str, str | Sequence[str]]
"""Words of one language, and what they must become in another: one phrase, or one of several."""


class Glossary:
    """Terms of one language, and what each must be called in another: one phrase, or one of several."""

    def __init__(self, entries: Entries, tokenizer: Tokenizer) -> None:
        """``tokenizer`` is that of the translations. A term that cannot be found or written is a UserError."""
        if not isinstance(entries, Mapping):
            raise UserError(
                f'terms are a dict such as {{"dog": "Hund"}}, got {show(entries)}: what stands in the text, and what it must become'
            )
        ways = [
            [given] if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
            for given in entries.values()
        ]
        for source, phrases in zip(entries, ways, strict=True):
            for text in (source, *phrases):
                if not isinstance(text, str) or not text.strip():
                    raise UserError(
                        f"terms: {show(source)}: wanted texts with words in them, got {show(text)}"
                    )
            if not phrases:
                raise UserError(f"terms: {show(source)} has no translation")
        texts = [" ".join(text.split()) for text in chain(*ways)]
        said = bytes_of(tokenizer) if any(map(unspaced, "".join(texts))) else {}
        found = iter(_phrases(tokenizer, texts, said))
        self._terms: dict[tuple[str, ...], Term] = {}
        for source, phrases in zip(entries, ways, strict=True):
            written = tuple(phrase for text in phrases for phrase in _writable(next(found), text, tokenizer))
            key = _words(source)
            ways_of = {(way.tokens, way.first): way for way in self._terms.get(key, ()) + written}
            self._terms[key] = tuple(ways_of.values())
        self._longest = max(map(len, self._terms), default=0)

    def of(self, text: str) -> list[Term]:
        """The terms that a text has, each once: whole words, whatever their case; of several the one with more words."""
        words, at, found = _words(text), 0, dict[tuple[str, ...], Term]()
        while at < len(words):
            sizes = range(min(self._longest, len(words) - at), 0, -1)
            key = next((words[at : at + size] for size in sizes if words[at : at + size] in self._terms), ())
            if key:
                found[key] = self._terms[key]
            at += len(key) or 1
        return list(found.values())


def terms_of(
    texts: Sequence[str], given: Glossary | Entries | None, tokenizer: Tokenizer
) -> list[list[Term]] | None:
    """The terms of each text; none where there is no glossary."""
    if given is None:
        return None
    return list(map((given if isinstance(given, Glossary) else Glossary(given, tokenizer)).of, texts))


def _words(text: str) -> tuple[str, ...]:
    """The words of a text as they are compared; where a script has no blanks, its characters."""
    spaced = "".join(f" {c} " if unspaced(c) else c for c in text.casefold())
    return tuple(WORD.findall(spaced))


def _phrases(tokenizer: Tokenizer, texts: Sequence[str], said: Mapping[int, bytes]) -> list[list[Phrase]]:
    """The tokens of each text as it begins a sentence, and as it stands within one."""
    (before,), alone = tokenizer.encode([BEFORE]), tokenizer.encode(texts)
    inside = tokenizer.encode([BEFORE + ("" if unspaced(text[0]) else BLANK) + text for text in texts])
    found = []
    for text, first, whole in zip(texts, alone, inside, strict=True):
        # where a vocabulary joins both, what is said first may stand anywhere
        within = whole[len(before) :] if whole[: len(before)] == before else first
        begins = [] if first == within else [Phrase(tuple(first), first=True)]
        other = Inside(text.encode(), said) if any(map(unspaced, text)) else None
        found.append([Phrase(tuple(within), inside=other), *begins])
    return found


def _writable(phrases: list[Phrase], text: str, tokenizer: Tokenizer) -> list[Phrase]:
    """Those that say what they should; a UserError where the vocabulary has no tokens for it."""
    unknown = tokenizer.ids.get("unk_token")
    if not all(phrase.tokens and unknown not in phrase.tokens for phrase in phrases):
        raise UserError(f"terms: the vocabulary of this model cannot write {show(text)}")
    return phrases
