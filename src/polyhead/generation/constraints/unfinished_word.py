"""The last word of a typed prefix, which the output may spell with other tokens than the cut text has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import WordBoundaries, decode_token_bytes, find_word_boundaries


class _SortedVocabulary(NamedTuple):
    """The tokens that add bytes to a text, sorted by them."""

    spellings: list[bytes]
    ids: list[int]
    token_bytes: Mapping[int, bytes]
    boundaries: WordBoundaries
    max_bytes: int  # of a token

    def find_tokens(self, text: bytes, begins: bool = False) -> Iterator[int]:
        """The tokens that are ``text``; those that are longer and begin with it, if ``begins``."""
        for i in range(bisect_left(self.spellings, text), len(self.spellings)):
            if not self.spellings[i].startswith(text):
                return
            if (self.spellings[i] != text) == begins:
                yield self.ids[i]


@lru_cache(maxsize=4)
def _sort_vocabulary(tokenizer: Tokenizer) -> _SortedVocabulary:
    token_bytes, special = decode_token_bytes(tokenizer), set(tokenizer.special_ids)
    pairs = sorted((spelling, i) for i, spelling in token_bytes.items() if spelling and i not in special)
    spellings, ids = [spelling for spelling, _ in pairs], [i for _, i in pairs]
    boundaries, max_bytes = find_word_boundaries(tokenizer), max(map(len, spellings), default=0)
    return _SortedVocabulary(spellings, ids, token_bytes, boundaries, max_bytes)


class UnfinishedWord:
    """The bytes of a word that the next tokens spell, in any way, and may continue.

    A token is allowed if it is a beginning of the bytes that are left, or begins with all of them. The tokens
    of a word that is cut, or of the space after it, are others than those of the whole text, after which a
    model was not trained to continue.
    """

    def __init__(self, text: bytes, num_tokens: int, vocabulary: _SortedVocabulary) -> None:
        """``num_tokens`` is the number of tokens that the tokenizer has for it."""
        self.text, self.num_tokens, self.vocabulary = text, num_tokens, vocabulary
        self.max_tokens = len(text)
        # tokens at each byte, after which the rest can be spelled to its end, and to no more
        self._inner: list[list[int]] = [[] for _ in text]
        for start in reversed(range(len(text))):
            for end in range(start + 1, min(len(text), start + vocabulary.max_bytes) + 1):
                if end == len(text) or self._inner[end]:
                    self._inner[start] += vocabulary.find_tokens(text[start:end])
        self.inner_tokens = set(chain(*self._inner))

    @property
    def can_be_spelled(self) -> bool:
        """Whether tokens spell it and no more."""
        return bool(self._inner and self._inner[0])

    def next_tokens(self, output_ids: Sequence[int], banned_ids: Collection[int] = ()) -> list[int]:
        """The allowed tokens after ``output_ids``, which begin with the word; empty after its end: all.

        Bans apply to the tokens that continue the word, not to those of what was typed.
        """
        start = 0
        for token in output_ids:
            if start >= len(self.text):
                break
            start += len(self.vocabulary.token_bytes[token])
        if start >= len(self.text):
            return []
        longer = self.vocabulary.find_tokens(self.text[start:], begins=True)
        return [*self._inner[start], *(token for token in longer if token not in banned_ids)]


class SplitPrefix(NamedTuple):
    """A typed prefix: tokens that are forced, and the word at its end."""

    ids: list[int]
    word: UnfinishedWord | None


def split_prefixes(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> list[SplitPrefix]:
    """Split prefixes before their last words.

    All tokens are forced if the word has no spelling, such as a special token, or no room for one within
    ``max_tokens``.
    """
    vocabulary, special = _sort_vocabulary(tokenizer), set(tokenizer.special_ids)
    splits = []
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        parts, start = _find_last_word(text, ids, vocabulary)
        word = UnfinishedWord(b"".join(parts[start:]), len(ids) - start, vocabulary)
        is_free = word.can_be_spelled and not special & set(ids[start:])
        has_room = start + word.max_tokens < max_tokens
        splits.append(SplitPrefix(ids[:start], word) if is_free and has_room else SplitPrefix(ids, None))
    return splits


def _find_last_word(text: str, ids: Sequence[int], vocabulary: _SortedVocabulary) -> tuple[list[bytes], int]:
    """The bytes of the tokens, and the number of the first one of the last word.

    In scripts without spaces, the word begins where a token may begin that is longer than what was typed.
    """
    parts = [vocabulary.token_bytes[token] for token in ids]
    spelled = b"".join(parts).decode(errors="ignore")
    if text[-1:].isspace() and not spelled[-1:].isspace():  # the tokenizer drops the blank at the end
        return [*parts, b" "], len(ids)
    if spelled[-1:].isspace() and not text[-1:].isspace():  # the mark of the end of a word
        parts[-1] = parts[-1][:-1]
    starts = np.flatnonzero(vocabulary.boundaries.find_word_starts(np.array(ids, np.int64))).tolist()
    tails = (b"".join(parts[i:]) for i in starts)
    longer = (
        i for i, tail in zip(starts, tails, strict=True) if any(vocabulary.find_tokens(tail, begins=True))
    )
    return parts, next(longer, starts[-1] if starts else 0)
