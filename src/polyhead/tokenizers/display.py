"""Tokens as readable text, without the escapes of a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from polyhead.core.errors import check_int
from polyhead.tokenizers.token_bytes import escape_bytes
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import decode_token_bytes

_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


def escape_controls(text: str) -> str:
    """The text with control characters escaped, such as ``\\x1b``, so that a terminal prints them."""
    return _CONTROL_CHARS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


REPLACEMENT_CHAR = "\ufffd"  # decoded from bytes of incomplete characters


def visible_token(tokenizer: Tokenizer, token: int) -> str:
    """A token for display: spaces as ␣, bytes of incomplete characters as ⟨E4 B8⟩."""
    return spell_token(tokenizer, token).replace(" ", "␣")


BEGIN_MARK, END_MARK = "▶", "■"
"""Signs before the name of the token that a decoder starts from, and of the one that ends a text."""


def spell_token(tokenizer: Tokenizer, token: int) -> str:
    """A token for display with spaces as they are: the text that it adds, or its vocabulary entry."""
    check_int("token", token, 0)
    return tokens_to_text(tokenizer, [token]) or tokenizer.ids_to_tokens([token])[0]


def name_token(tokenizer: Tokenizer, token: int, mark: str = "") -> str:
    """A token for drawings: with a sign before its name, by default only for the one that ends a text."""
    mark = mark or (END_MARK if token == tokenizer.role_ids.get("eos_token") else "")
    name = spell_token(tokenizer, token)
    return f"{mark}\u00a0{name}" if mark else name


def tokens_to_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode tokens to one text without special tokens; bytes of incomplete characters become ⟨E4 B8⟩."""
    (text,) = tokenizer.decode([ids])
    if REPLACEMENT_CHAR not in text:
        return text
    utf8 = decode_token_bytes(tokenizer)
    return escape_bytes(b"".join(utf8[i] for i in ids if i not in tokenizer.skipped_ids))
