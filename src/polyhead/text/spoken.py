"""What each token says, where a text is nothing but the bytes of its tokens, one behind the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import tokenizers

_SHOWN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
BYTES = {chr(byte): byte for byte in _SHOWN} | {chr(0x100 + i): byte for i, byte in enumerate(_HIDDEN)}
"""The byte that a character of a byte-level vocabulary stands for (Radford et al., 2019)."""


_STRAY = re.compile("[\udc80-\udcff]+")  # how "surrogateescape" decodes bytes that are no character


class Spoken(dict[int, bytes]):
    """The bytes of each token. Special ones, and ids that are no token, say nothing."""

    def __missing__(self, token: int) -> bytes:
        return b""

    def text(self, ids: Iterable[int]) -> str:
        """Ids to text, as the tokenizer decodes them; several times as fast, and nothing is waited for."""
        return b"".join(map(self.__getitem__, ids)).decode(errors="replace")


def spoken(inner: tokenizers.Tokenizer) -> Spoken | None:
    """The bytes of a byte-level tokenizer's tokens; None for others, in which a token's text depends on its neighbours."""
    if (json.loads(inner.to_str()).get("decoder") or {}).get("type") != "ByteLevel":
        return None
    added = inner.get_added_tokens_decoder()
    return Spoken(
        (i, said(token))
        for token, i in inner.get_vocab(with_added_tokens=True).items()
        if not (i in added and added[i].special)
    )


def said(token: str) -> bytes:
    """The bytes of a token by its name; one that is spelled by other characters, as added ones may be, says its name."""
    return bytes(BYTES[c] for c in token) if token and BYTES.keys() >= set(token) else token.encode()


def spell_bytes(utf8: bytes) -> str:
    """UTF-8 as a text for people: bytes that are no whole character are written as ⟨E4 B8⟩, with a no-break space."""

    def spell(stray: re.Match[str]) -> str:
        return f"⟨{stray[0].encode(errors='surrogateescape').hex(' ').upper()}⟩".replace(" ", "\u00a0")

    return _STRAY.sub(spell, utf8.decode(errors="surrogateescape"))
