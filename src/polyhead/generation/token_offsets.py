"""Offsets of generated tokens in their text."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from polyhead.generation.detokenizer import Detokenizer
from polyhead.tokenizers.display import REPLACEMENT_CHAR
from polyhead.tokenizers.token_bytes import TokenBytes
from polyhead.tokenizers.tokenizer import Tokenizer


class ByteTokenOffsets:
    """Offsets of byte-level tokens: the character that the first byte belongs to, also for invalid UTF-8."""

    def __init__(self, token_bytes: TokenBytes, prefix_ids: Sequence[int], offset: int) -> None:
        self.token_bytes, self.pending_bytes = token_bytes, b""  # pending: an incomplete character
        self.offset = 0  # character offset of the first pending byte
        self._add_bytes(b"".join(token_bytes[token] for token in prefix_ids))
        self.offset = offset - len(self.pending_bytes.decode(errors="replace"))

    def next_offsets(self, tokens: Sequence[int]) -> list[int]:
        """Return the offset of the first character of each token."""
        offsets = []
        for token in tokens:
            data = self.token_bytes[token]
            text = (self.pending_bytes + data[:1]).decode(errors="replace")
            offsets.append(max(0, self.offset + len(text) - 1 if data else self.offset))
            self._add_bytes(data)
        return offsets

    def _add_bytes(self, new_bytes: bytes) -> None:
        data = self.pending_bytes + new_bytes
        text, num_used = utf_8_decode(data, "replace", False)
        self.offset, self.pending_bytes = self.offset + len(text), data[num_used:]


class TextTokenOffsets:
    """Offsets of tokens whose text depends on their neighbours.

    An offset is the end of the text that is final before the token.
    """

    def __init__(self, tokenizer: Tokenizer, prefix_ids: Sequence[int], offset: int) -> None:
        self.detokenizer, self.offset = Detokenizer.for_tokenizer(tokenizer, (), prefix_ids), offset

    def next_offsets(self, tokens: Sequence[int]) -> list[int]:
        offsets = []
        for token in tokens:
            num_pending = self.detokenizer.num_pending_chars
            text = self.detokenizer.feed(token)
            # pending bytes of a character that turns out to be incomplete
            num_broken = min(num_pending, len(text) - len(text.lstrip(REPLACEMENT_CHAR)))
            offsets.append(self.offset + num_broken)
            self.offset += len(text)
        return offsets


TokenOffsets = ByteTokenOffsets | TextTokenOffsets
"""Character offsets of tokens in a text, incrementally.

A token that is a part of a character has the offset of the character.
"""


def token_offsets(tokenizer: Tokenizer, prefix_ids: Sequence[int] = (), offset: int = 0) -> TokenOffsets:
    """Return the offsets of tokens that follow ``prefix_ids``, whose text has ``offset`` characters."""
    token_bytes = tokenizer.token_bytes
    return (
        TextTokenOffsets(tokenizer, prefix_ids, offset)
        if token_bytes is None
        else ByteTokenOffsets(token_bytes, prefix_ids, offset)
    )
