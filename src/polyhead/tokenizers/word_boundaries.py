"""Word boundaries in a sequence of tokens, for any kind of tokenizer.

A word is the text between spaces, with the space before it; a punctuation mark, a symbol and a character of a
script without spaces (Chinese, Japanese, Thai) is a word by itself, as in BERT's tokenizer.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead.core.array_types import Bools
from polyhead.tokenizers.special_tokens import BYTE_TOKEN
from polyhead.tokenizers.token_bytes import token_to_bytes
from polyhead.tokenizers.tokenizer import Tokenizer

_SENTENCE_ENDS = ".!?。！？…"
_CLOSING_MARKS = "\"'”’)]»」』）"
_FIRST_WIDE_BYTE = 0xE3  # first UTF-8 byte of U+3000 and above, where scripts have no spaces


class WordBoundaries(NamedTuple):
    """Word boundaries by token id, for each token of the vocabulary."""

    starts_word: Bools  # (V,) whether the token starts a word
    ends_word: Bools  # (V,) whether any next token starts a word
    ends_sentence: Bools  # (V,)
    has_blank_before: bool  # whether tokens include the space before their word

    def find_word_starts(self, ids: NDArray[Any]) -> Bools:
        """(T,) ids -> (T,) whether a word starts there; always true at the first token."""
        word_starts: Bools = self.starts_word[ids].copy()
        word_starts[1:] |= self.ends_word[ids[:-1]]
        word_starts[:1] = True
        return word_starts


def find_word_boundaries(tokenizer: Tokenizer) -> WordBoundaries:
    """Word boundaries of a tokenizer, from the spelling of its tokens."""
    texts, is_inner = spell_vocabulary(tokenizer)
    special = set(tokenizer.special_ids)
    starts_word = [
        i in special or (not is_inner_token and _starts_word(text))
        for i, (text, is_inner_token) in enumerate(zip(texts, is_inner, strict=True))
    ]
    ends_word = [i in special or _ends_word(text) for i, text in enumerate(texts)]
    stripped = [text.rstrip(_CLOSING_MARKS) if text.strip() else text for text in texts]
    ends_sentence = [
        i not in special and (text[-1:] or " ") in _SENTENCE_ENDS + "\n" for i, text in enumerate(stripped)
    ]
    has_blank_before = any(
        text[:1] == " " and text[1:2].isalpha() for i, text in enumerate(texts) if i not in special
    )
    return WordBoundaries(
        np.array(starts_word, bool),
        np.array(ends_word, bool),
        np.array(ends_sentence, bool),
        has_blank_before,
    )


def spell_vocabulary(tokenizer: Tokenizer) -> tuple[list[str], list[bool]]:
    """The text of each token, and whether it occurs only inside a word.

    A byte that is part of a character is written as a private character, U+F700 plus its value. A word starts
    with a space if the vocabulary marks word starts, and ends with a newline if it marks word ends.
    """
    file = json.loads(tokenizer.tokenizer_json)
    model = file["model"]
    prefix, suffix = (model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    rules = json.dumps([file.get("pre_tokenizer"), file.get("decoder")])
    names = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    has_start_marks = any(name.startswith(("▁", "Ġ")) for name in names)
    is_inner = [bool(prefix) and name.startswith(prefix) for name in names]
    stems = [
        name[len(prefix) :] if is_inner_token else name
        for name, is_inner_token in zip(names, is_inner, strict=True)
    ]
    if "ByteLevel" in rules:
        texts = _decode_byte_names(stems)
    else:
        texts = [
            _private_char(int(byte[1], 16))
            if (byte := BYTE_TOKEN.fullmatch(name))
            else name.replace("▁", " ")
            for name in stems
        ]
    if suffix:
        texts = [name.removesuffix(suffix) + "\n" if name.endswith(suffix) else name for name in texts]
    elif prefix and not has_start_marks:  # a token without the prefix starts a word
        texts = [
            name if is_inner_token or not name[:1].isalnum() else " " + name
            for name, is_inner_token in zip(texts, is_inner, strict=True)
        ]
    return texts, is_inner


@lru_cache(maxsize=4)
def decode_token_bytes(tokenizer: Tokenizer) -> Mapping[int, bytes]:
    """Token id -> UTF-8 bytes of its text, for any tokenizer."""
    token_bytes = tokenizer.token_bytes or dict(
        enumerate(map(_spelling_to_bytes, spell_vocabulary(tokenizer)[0]))
    )
    return {i: token_bytes[i] for i in range(tokenizer.vocab_size)}


def _starts_word(text: str) -> bool:
    return bool(text) and (text[0].isspace() or _is_single_word(text[0]))


def _ends_word(text: str) -> bool:
    """Whether the token ends a word: at a newline or a single-character word, but not at a space."""
    if not text or 0xF700 <= ord(text[-1]) <= 0xF7FF:
        return False
    return _is_single_word(text[-1]) or (text[-1].isspace() and text[-1] != " ")


def _is_single_word(character: str) -> bool:
    """Whether a character is a word by itself."""
    code = ord(character)
    if 0xF700 <= code <= 0xF7FF:  # one byte of several: the first byte of a wide character starts a word
        return code - 0xF700 >= _FIRST_WIDE_BYTE
    if unicodedata.category(character)[0] in "PS":
        return True
    return is_unspaced_char(character)


def is_unspaced_char(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    name = unicodedata.name(character, "") if ord(character) > 0x0E00 else ""
    return name.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI"))


def _private_char(byte: int) -> str:
    return chr(byte) if byte < 0x80 else chr(0xF700 + byte)


def _spelling_to_bytes(text: str) -> bytes:
    """UTF-8 bytes of a text with private characters for bytes."""
    return b"".join(bytes([ord(c) - 0xF700]) if 0xF700 <= ord(c) <= 0xF7FF else c.encode() for c in text)


def _decode_byte_names(names: Sequence[str]) -> list[str]:
    """Texts of byte-level tokens."""
    return [_decode_stray_bytes(token_to_bytes(name)) for name in names]


def _decode_stray_bytes(raw: bytes) -> str:
    """Decode UTF-8, with private characters for bytes of incomplete characters."""
    return re.sub(
        "[\udc80-\udcff]", lambda m: _private_char(ord(m[0]) - 0xDC00), raw.decode(errors="surrogateescape")
    )
