"""Where words begin in a row of tokens, whatever kind of tokenizer made them.

A word is what stands between blanks, its blank before it included; a punctuation mark, a symbol and a character of
a script without blanks (Chinese, Japanese, Thai) is a word by itself, as BERT's tokenizer has it.
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

from polyhead.text.specials import BYTE
from polyhead.text.spoken import said
from polyhead.text.tokenizer import Tokenizer

Bools = NDArray[np.bool_]
SENTENCE_ENDS = ".!?。！？…"
CLOSING = "\"'”’)]»」』）"
FIRST_WIDE = 0xE3  # the first byte in UTF-8 of U+3000 and all above it, where scripts have no blanks


class Words(NamedTuple):
    """What a token says about the words about it, one place for each token of the vocabulary."""

    begins: Bools  # (V,) it begins a word
    ends: Bools  # (V,) whatever follows begins one
    ends_sentence: Bools  # (V,)
    blank_before: bool  # whether tokens hold the blank before their word, so that none stands alone

    def starts(self, ids: NDArray[Any]) -> Bools:
        """(T,) ids -> (T,) whether a word begins there; one always does at the first token."""
        begun: Bools = self.begins[ids].copy()
        begun[1:] |= self.ends[ids[:-1]]
        begun[:1] = True
        return begun


def words_of(tokenizer: Tokenizer) -> Words:
    """What the tokens of a tokenizer say about words, found from how they are spelled."""
    spelled, inside = spellings(tokenizer)
    special = set(tokenizer.special_ids)
    begins = [
        i in special or (not within and _begins(text))
        for i, (text, within) in enumerate(zip(spelled, inside, strict=True))
    ]
    ends = [i in special or _ends(text) for i, text in enumerate(spelled)]
    last = [text.rstrip(CLOSING) if text.strip() else text for text in spelled]
    stops = [i not in special and (text[-1:] or " ") in SENTENCE_ENDS + "\n" for i, text in enumerate(last)]
    joined = any(
        text[:1] == " " and text[1:2].isalpha() for i, text in enumerate(spelled) if i not in special
    )
    return Words(np.array(begins, bool), np.array(ends, bool), np.array(stops, bool), joined)


def spellings(tokenizer: Tokenizer) -> tuple[list[str], list[bool]]:
    """Each token as it stands in a text, and whether it only stands inside a word.

    A byte that is no character alone is a private character, U+F700 and its value. A word begins with a blank where
    the vocabulary has a mark for that, and ends with one where it marks ends.
    """
    file = json.loads(tokenizer.rules)
    model = file["model"]
    prefix, suffix = (model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    rules = json.dumps([file.get("pre_tokenizer"), file.get("decoder")])
    names = tokenizer.tokens(range(tokenizer.vocab_size))
    marked = any(name.startswith(("▁", "Ġ")) for name in names)
    inside = [bool(prefix) and name.startswith(prefix) for name in names]
    bare = [name[len(prefix) :] if within else name for name, within in zip(names, inside, strict=True)]
    if "ByteLevel" in rules:
        spelled = _from_bytes(bare)
    else:
        spelled = [
            _private(int(found[1], 16)) if (found := BYTE.fullmatch(name)) else name.replace("▁", " ")
            for name in bare
        ]
    if suffix:
        spelled = [name.removesuffix(suffix) + "\n" if name.endswith(suffix) else name for name in spelled]
    elif prefix and not marked:  # the start of a word is what has no prefix
        spelled = [
            name if within or not name[:1].isalnum() else " " + name
            for name, within in zip(spelled, inside, strict=True)
        ]
    return spelled, inside


@lru_cache(maxsize=4)
def bytes_of(tokenizer: Tokenizer) -> Mapping[int, bytes]:
    """What each token says, in UTF-8."""
    spelled = tokenizer.spoken or dict(enumerate(map(_bytes, spellings(tokenizer)[0])))
    return {i: spelled[i] for i in range(tokenizer.vocab_size)}


def _begins(text: str) -> bool:
    return bool(text) and (text[0].isspace() or _alone(text[0]))


def _ends(text: str) -> bool:
    """A blank belongs to the word after it; the end of a line and what stands alone do not."""
    if not text or 0xF700 <= ord(text[-1]) <= 0xF7FF:
        return False
    return _alone(text[-1]) or (text[-1].isspace() and text[-1] != " ")


def _alone(character: str) -> bool:
    """Whether a character is a word by itself."""
    code = ord(character)
    if 0xF700 <= code <= 0xF7FF:  # one byte of several: the first of a wide character begins it
        return code - 0xF700 >= FIRST_WIDE
    if unicodedata.category(character)[0] in "PS":
        return True
    return unspaced(character)


def unspaced(character: str) -> bool:
    """Whether its script puts no blanks between words."""
    name = unicodedata.name(character, "") if ord(character) > 0x0E00 else ""
    return name.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI"))


def _private(byte: int) -> str:
    return chr(byte) if byte < 0x80 else chr(0xF700 + byte)


def _bytes(text: str) -> bytes:
    """The bytes of a spelling."""
    return b"".join(bytes([ord(c) - 0xF700]) if 0xF700 <= ord(c) <= 0xF7FF else c.encode() for c in text)


def _from_bytes(names: Sequence[str]) -> list[str]:
    """Tokens of a byte-level vocabulary."""
    return [_decoded(said(name)) for name in names]


def _decoded(raw: bytes) -> str:
    """UTF-8, with private characters for bytes that are part of one only."""
    return re.sub(
        "[\udc80-\udcff]", lambda m: _private(ord(m[0]) - 0xDC00), raw.decode(errors="surrogateescape")
    )
