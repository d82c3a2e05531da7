"""The bytes of each token of a byte-level tokenizer, whose text is the concatenation of token bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import tokenizers

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_NON_PRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_DECODER = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + i): byte for i, byte in enumerate(_NON_PRINTABLE)
}
"""Character of a byte-level vocabulary -> byte (Radford et al., 2019)."""


_STRAY_BYTES = re.compile("[\udc80-\udcff]+")  # bytes outside of characters, decoded with "surrogateescape"


class TokenBytes(dict[int, bytes]):
    """Token id -> bytes; b"" for special tokens and unknown ids."""

    def __missing__(self, token: int) -> bytes:
        return b""

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text like the tokenizer, but several times as fast, without a call of the library."""
        return b"".join(map(self.__getitem__, ids)).decode(errors="replace")


def build_token_bytes(inner: tokenizers.Tokenizer) -> TokenBytes | None:
    """The token bytes of a byte-level tokenizer; None for others, whose token texts depend on context."""
    if (json.loads(inner.to_str()).get("decoder") or {}).get("type") != "ByteLevel":
        return None
    added = inner.get_added_tokens_decoder()
    return TokenBytes(
        (i, token_to_bytes(token))
        for token, i in inner.get_vocab(with_added_tokens=True).items()
        if not (i in added and added[i].special)
    )


def token_to_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; a token with other characters, such as an added one, is its UTF-8."""
    is_spelling = token and BYTE_DECODER.keys() >= set(token)
    return bytes(BYTE_DECODER[c] for c in token) if is_spelling else token.encode()


def escape_bytes(utf8: bytes) -> str:
    """Decode UTF-8 for display; bytes of incomplete characters become ⟨E4 B8⟩, with a no-break space."""

    def escape_stray(stray: re.Match[str]) -> str:
        return f"⟨{stray[0].encode(errors='surrogateescape').hex(' ').upper()}⟩".replace(" ", "\u00a0")

    return _STRAY_BYTES.sub(escape_stray, utf8.decode(errors="surrogateescape"))
