"""Word boundaries in a sequence of tokens, for any kind of tokenizer.

A word is the text between spaces, with the space before it; a punctuation mark, a symbol and a character of a
script without spaces (Chinese, Japanese, Thai) is a word by itself, as in BERT's tokenizer. A character
has its combining marks.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead.core.array_types import Bools
from polyhead.tokenizers.scripts import continues_grapheme, is_unspaced_char, split_graphemes
from polyhead.tokenizers.special_tokens import BYTE_TOKEN
from polyhead.tokenizers.token_bytes import token_to_bytes
from polyhead.tokenizers.tokenizer import Tokenizer

_SENTENCE_ENDS = ".!?。！？…"
_CLOSING_MARKS = "\"'”’)]»」』）"


class WordBoundaries(NamedTuple):
    """Word boundaries by token id, for each token of the vocabulary."""

    starts_word: Bools  # (V,) whether the token starts a word
    ends_word: Bools  # (V,) whether any next token starts a word
    ends_sentence: Bools  # (V,)
    has_blank_before: bool  # whether tokens include the space before their word
    needs_context: Bools  # (V,) whether the token may continue a character, or is a part of one
    token_bytes: Sequence[bytes]  # of each token; of special tokens a newline

    def find_word_starts(self, ids: NDArray[Any]) -> Bools:
        """(T,) ids -> (T,) whether a word starts there; always true at the first token."""
        if self.needs_context[ids].any():
            return np.array(_find_word_starts_in_text([self.token_bytes[i] for i in ids]), bool)
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
        np.array([i not in special and _depends_on_context(text) for i, text in enumerate(texts)], bool),
        [b"\n" if i in special else _spelling_to_bytes(text) for i, text in enumerate(texts)],
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
        texts = [_decode_stray_bytes(token_to_bytes(name)) for name in stems]
    else:
        matches = ((name, BYTE_TOKEN.fullmatch(name)) for name in stems)
        texts = [_private_char(int(m[1], 16)) if m else name.replace("▁", " ") for name, m in matches]
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
    """Whether any next token starts a word: after a newline or a single-character word, not after a space."""
    if not text:
        return False
    last = split_graphemes(text)[-1][0]
    return _is_single_word(last) or (last.isspace() and last != " ")


def _is_single_word(character: str) -> bool:
    """Whether a character, with its combining marks, is a word by itself."""
    return unicodedata.category(character)[0] in "PS" or is_unspaced_char(character)


def _depends_on_context(text: str) -> bool:
    """Whether a token may continue the character of the token before it, or has only a part of one."""
    return bool(text) and (
        continues_grapheme(text[0]) or _is_private_char(text[0]) or _is_private_char(text[-1])
    )


def _find_word_starts_in_text(parts: Sequence[bytes]) -> list[bool]:
    """Whether a word starts at the first character of each of the parts of a text."""
    starts, position, is_after_word = set[int](), 0, True
    for cluster in split_graphemes(b"".join(parts).decode(errors="surrogateescape")):
        size, starts_word, ends_word = _describe_cluster(cluster)
        if is_after_word or starts_word:
            starts.add(position)
        position, is_after_word = position + size, ends_word
    offsets = accumulate(map(len, parts[:-1]), initial=0)
    return [offset in starts for offset in offsets]


@lru_cache(maxsize=1 << 14)
def _describe_cluster(cluster: str) -> tuple[int, bool, bool]:
    """(number of bytes, whether a word starts with it, whether the next word starts after it)."""
    return len(cluster.encode(errors="surrogateescape")), _starts_word(cluster), _ends_word(cluster)


def _is_private_char(character: str) -> bool:
    return 0xF700 <= ord(character) <= 0xF7FF


def _private_char(byte: int) -> str:
    return chr(byte) if byte < 0x80 else chr(0xF700 + byte)


def _spelling_to_bytes(text: str) -> bytes:
    """UTF-8 bytes of a text with private characters for bytes."""
    return b"".join(bytes([ord(c) - 0xF700]) if _is_private_char(c) else c.encode() for c in text)


def _decode_stray_bytes(raw: bytes) -> str:
    """Decode UTF-8, with private characters for bytes of incomplete characters."""
    return re.sub(
        "[\udc80-\udcff]", lambda m: _private_char(ord(m[0]) - 0xDC00), raw.decode(errors="surrogateescape")
    )
