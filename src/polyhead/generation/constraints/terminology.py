"""Terminology: required translations of the words of a text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import regex

from polyhead.core.blank_text import is_blank
from polyhead.core.errors import UserError, format_value
from polyhead.tokenizers.scripts import fold_text, is_unspaced_char, split_words
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import decode_token_bytes

_CONTEXT_WORD, _BLANK = "x", " "  # a word that precedes another one
_MAX_CHAR_BYTES = 4
_EMOJI_PARTS = "\u200d\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"  # zero width joiner, skin tones
_INVISIBLE = regex.compile(r"(?V1)[\p{Cf}\ufe0e\ufe0f--\u200b\u200d]")  # \u200b: a line may break there


class TermPhrase(NamedTuple):
    """A token sequence that spells a phrase."""

    tokens: tuple[int, ...]
    is_initial: bool = False  # whether it spells the phrase only at the beginning of a text
    matcher: TermMatcher | None = None  # finds the phrase in other tokens
    word_end: WordEnd | None = None  # None if no token continues a word

    def find_rests(self, row: Sequence[int], matched_len: int) -> list[bytes]:
        """The text after the phrase, at each place where the last token of a row completes it.

        The row ends with ``matched_len`` tokens of the phrase.
        """
        if matched_len == len(self.tokens):
            return [b""]
        return [] if self.matcher is None else self.matcher.find_rests(row)


class WordEnd:
    """Decides by the next character of a text whether the last word, or the last character, is longer."""

    def __init__(self, token_bytes: Mapping[int, bytes], is_spaced: bool) -> None:
        """``is_spaced``: whether letters and digits make the word longer, as in scripts with spaces."""
        self.token_bytes, self.is_spaced = token_bytes, is_spaced

    @cached_property
    def unsafe_tokens(self) -> frozenset[int]:
        """The tokens that continue the word, or may do so with the next ones."""
        return frozenset(i for i, text in self.token_bytes.items() if self.is_continued(text) is not False)

    def is_continued(self, text: bytes) -> bool | None:
        """Whether the next text continues the word; None as long as it has no visible character."""
        decoded = text.decode(errors="ignore")
        visible = _INVISIBLE.sub("", decoded)[:1]
        if not visible:
            return None if decoded or len(text) < _MAX_CHAR_BYTES else False
        is_mark = unicodedata.category(visible)[0] == "M" or visible in _EMOJI_PARTS
        return is_mark or (self.is_spaced and _is_in_word(visible))


class TermMatcher(NamedTuple):
    """Find a phrase in tokens that contain more than it, as in scripts without spaces between words."""

    target: str
    token_bytes: Mapping[int, bytes]  # of each token

    def find_rests(self, row: Sequence[int]) -> list[bytes]:
        """The text after the phrase, at each place where the last token of a row completes it."""
        target, tail, i = self.target.encode(), b"", len(row)
        num_last = len(self.token_bytes[row[-1]]) if row else 0
        while i and len(tail) < len(target) + num_last + _MAX_CHAR_BYTES:
            i -= 1
            tail = self.token_bytes[row[i]] + tail
        rests, start = [], tail.find(target)
        while start >= 0:
            before, rest = tail[:start].decode(errors="ignore")[-1:], tail[start + len(target) :]
            is_inside = before and _is_in_word(before) and _is_in_word(self.target[0])
            rests += [rest] * (len(rest) < num_last and not is_inside)
            start = tail.find(target, start + 1)
        return rests


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
        phrase_lists = iter(_encode_phrases(tokenizer, texts))
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


def _encode_phrases(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[TermPhrase]]:
    """The tokens of each text at the beginning of a sentence, and inside of one."""
    (context_ids,), initial_rows = tokenizer.encode([_CONTEXT_WORD]), tokenizer.encode(texts)
    inner_rows = tokenizer.encode(
        [_CONTEXT_WORD + ("" if is_unspaced_char(text[0]) else _BLANK) + text for text in texts]
    )
    spaced_end, unspaced_end = _make_word_ends(tokenizer)
    has_end_marks = json.loads(tokenizer.tokenizer_json)["model"].get("end_of_word_suffix")
    phrase_lists = []
    for text, initial_ids, context_row in zip(texts, initial_rows, inner_rows, strict=True):
        # if the vocabulary merges the context with the text, the initial tokens may occur anywhere
        inner_ids = (
            context_row[len(context_ids) :] if context_row[: len(context_ids)] == context_ids else initial_ids
        )
        is_unspaced = any(map(is_unspaced_char, text))
        matcher = TermMatcher(text, spaced_end.token_bytes) if is_unspaced else None
        word_end = None if has_end_marks else spaced_end if _is_in_word(text[-1]) else unspaced_end
        phrases = [TermPhrase(tuple(inner_ids), False, matcher, word_end)]
        if initial_ids != inner_ids:
            phrases.append(TermPhrase(tuple(initial_ids), True, None, word_end))
        phrase_lists.append(phrases)
    return phrase_lists


@lru_cache(maxsize=4)
def _make_word_ends(tokenizer: Tokenizer) -> tuple[WordEnd, WordEnd]:
    """The ends of words in scripts with spaces between them, and in others.

    Special tokens have no text; the end of a sentence is a blank, which ends a word.
    """
    texts = dict(decode_token_bytes(tokenizer)) | dict.fromkeys(tokenizer.special_ids, b"")
    texts[tokenizer.eos_id] = _BLANK.encode()
    return WordEnd(texts, True), WordEnd(texts, False)


def _is_in_word(char: str) -> bool:
    """Whether a character is a letter, a mark, a digit or _, of a script with spaces between words."""
    return (unicodedata.category(char)[0] in "LMN" or char == "_") and not is_unspaced_char(char)


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
