"""Terminology: required translations of the words of a text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, format_value
from polyhead.tokenizers.scripts import fold_text, is_unspaced_char, split_words
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import decode_token_bytes, spell_vocabulary

_CONTEXT_WORD, _BLANK = "x", " "  # a word that precedes another one


class TermPhrase(NamedTuple):
    """A token sequence that spells a phrase."""

    tokens: tuple[int, ...]
    is_initial: bool = False  # whether it spells the phrase only at the beginning of a text
    matcher: TermMatcher | None = None  # finds the phrase in other tokens
    continuations: frozenset[int] = frozenset()  # tokens that would make its last word a longer one


class TermMatcher(NamedTuple):
    """Find a phrase in tokens that contain more than it, as in scripts without spaces between words."""

    target_bytes: bytes
    token_bytes: Mapping[int, bytes]  # of each token

    def matches_end(self, row: Sequence[int]) -> bool:
        """Whether the last token of a row completes the phrase."""
        reach = len(self.target_bytes) - 1 + len(self.token_bytes[row[-1]]) if row else 0
        tail, i = b"", len(row)
        while i and len(tail) < reach:
            i -= 1
            tail = self.token_bytes[row[i]] + tail
        return self.target_bytes in tail[max(0, len(tail) - reach) :]


Term = tuple[TermPhrase, ...]
"""Alternative phrases, one of which must occur."""
TermEntries = Mapping[str, str | Sequence[str]]
"""Source terms and the required translation of each: one phrase, or several alternatives."""


class Terminology:
    """Source terms and the required translation of each: one phrase, or several alternatives."""

    def __init__(self, entries: TermEntries, tokenizer: Tokenizer) -> None:
        """``tokenizer`` is the target tokenizer. A term that cannot be found or encoded is a UserError."""
        if not isinstance(entries, Mapping):
            raise UserError(
                f'terms are a dict such as {{"dog": "Hund"}}, got {format_value(entries)}: source '
                "words and their required translations"
            )
        alternatives = [
            [value] if isinstance(value, str) else value if isinstance(value, Sequence) else [value]
            for value in entries.values()
        ]
        for source, phrases in zip(entries, alternatives, strict=True):
            for text in (source, *phrases):
                if not isinstance(text, str) or is_blank(text):
                    raise UserError(
                        f"terminology: {format_value(source)}: expected texts with words, got "
                        f"{format_value(text)}"
                    )
            if not phrases:
                raise UserError(f"terminology: {format_value(source)} has no translation")
        texts = [form for text in chain(*alternatives) for form in _spell_forms(text)]
        token_bytes = decode_token_bytes(tokenizer) if any(map(is_unspaced_char, "".join(texts))) else {}
        phrase_lists = iter(_encode_phrases(tokenizer, texts, token_bytes))
        self._terms: dict[tuple[str, ...], Term] = {}
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}  # as spelled in either casing
        for source, phrases in zip(entries, alternatives, strict=True):
            term = tuple(
                phrase
                for text in phrases
                for phrase in _select_encodable(
                    [next(phrase_lists) for _ in _spell_forms(text)], text, tokenizer
                )
            )
            key, turkish_key = _split_words(source)
            self._keys |= {key: key} | ({} if turkish_key in self._keys else {turkish_key: key})
            unique_phrases: dict[tuple[tuple[int, ...], bool], TermPhrase] = {}
            for phrase in self._terms.get(key, ()) + term:
                unique_phrases.setdefault((phrase.tokens, phrase.is_initial), phrase)
            self._terms[key] = tuple(unique_phrases.values())
        self._max_words = max(map(len, self._terms), default=0)

    def find_terms(self, text: str) -> list[Term]:
        """The terms of a text, each once: whole words, the longest match first.

        Case does not matter, nor whether characters are composed (NFC) or decomposed (NFD); I is the upper
        case of i or, in Turkish, of ı.
        """
        casings, i, terms = _split_words(text), 0, dict[tuple[str, ...], Term]()
        num_words = len(casings[0])
        while i < num_words:
            sizes = range(min(self._max_words, num_words - i), 0, -1)
            candidates = (words[i : i + size] for size in sizes for words in casings)
            key = next((self._keys[words] for words in candidates if words in self._keys), ())
            if key:
                terms[key] = self._terms[key]
            i += len(key) or 1
        return list(terms.values())


def terminology_for(
    texts: Sequence[str], terminology: Terminology | TermEntries | None, tokenizer: Tokenizer
) -> list[list[Term]] | None:
    """The terms of each text; None without a terminology."""
    if terminology is None:
        return None
    return list(
        map(
            (
                terminology if isinstance(terminology, Terminology) else Terminology(terminology, tokenizer)
            ).find_terms,
            texts,
        )
    )


def _split_words(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of a text, folded for comparison in both casings; without spaces, its clusters."""
    plain, turkish = (tuple(split_words(fold_text(text, upper_i))) for upper_i in "iı")
    return plain, turkish


def _spell_forms(text: str) -> list[str]:
    """A text as written, with composed and with decomposed characters: a model may write either."""
    text = " ".join(text.split())
    return list(dict.fromkeys([text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))]))


def _encode_phrases(
    tokenizer: Tokenizer, texts: Sequence[str], token_bytes: Mapping[int, bytes]
) -> list[list[TermPhrase]]:
    """The tokens of each text at the beginning of a sentence, and inside of one."""
    (context_ids,), initial_rows = tokenizer.encode([_CONTEXT_WORD]), tokenizer.encode(texts)
    inner_rows = tokenizer.encode(
        [_CONTEXT_WORD + ("" if is_unspaced_char(text[0]) else _BLANK) + text for text in texts]
    )
    continuations, phrase_lists = _find_continuations(tokenizer), []
    for text, initial_ids, context_row in zip(texts, initial_rows, inner_rows, strict=True):
        # if the vocabulary merges the context with the text, the initial tokens may occur anywhere
        inner_ids = (
            context_row[len(context_ids) :] if context_row[: len(context_ids)] == context_ids else initial_ids
        )
        matcher = TermMatcher(text.encode(), token_bytes) if any(map(is_unspaced_char, text)) else None
        longer = continuations if _is_in_word(text[-1]) else frozenset()
        phrases = [TermPhrase(tuple(inner_ids), False, matcher, longer)]
        if initial_ids != inner_ids:
            phrases.append(TermPhrase(tuple(initial_ids), True, None, longer))
        phrase_lists.append(phrases)
    return phrase_lists


def _find_continuations(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that continue the word before them; none if the vocabulary marks the ends of words.

    Of a token that begins inside a character of two bytes, from U+00C0 on, a letter is assumed.
    """
    if json.loads(tokenizer.tokenizer_json)["model"].get("end_of_word_suffix"):
        return frozenset()
    texts, _ = spell_vocabulary(tokenizer)
    special, token_bytes = set(tokenizer.special_ids), decode_token_bytes(tokenizer)
    return frozenset(
        i
        for i, text in enumerate(texts)
        if text and i not in special and (_is_in_word(text[0]) or 0xC3 <= token_bytes[i][0] <= 0xDF)
    )


def _is_in_word(char: str) -> bool:
    """Whether a character is a letter, a mark or a digit of a script with spaces between words."""
    return unicodedata.category(char)[0] in "LMN" and not is_unspaced_char(char)


def _select_encodable(
    phrase_lists: list[list[TermPhrase]], text: str, tokenizer: Tokenizer
) -> list[TermPhrase]:
    """The phrases of the forms of a text that the vocabulary has tokens for; a UserError if it has none."""
    unknown = tokenizer.role_ids.get("unk_token")
    encodable = [
        phrases
        for phrases in phrase_lists
        if all(phrase.tokens and unknown not in phrase.tokens for phrase in phrases)
    ]
    if not encodable:
        raise UserError(f"terminology: the vocabulary of this model cannot write {format_value(text)}")
    return list(chain(*encodable))
