"""Check the character map of a SentencePiece normalizer, whose numbers the library takes as addresses.

A map is the size of a trie in bytes, the trie, and the texts that it maps to, each ended by a zero byte. The
trie is a double array (Darts): from a node with offset ``base``, byte c leads to the unit at ``base ^ c``, if
its label is c. If that unit has a leaf, the unit at its own offset holds the address of a text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LEAF, _WIDE = 1 << 8, 1 << 9  # flags of a unit: a text ends here; the offset is shifted by 8 bits


def max_text_len(charsmap: bytes) -> int:
    """Return the number of characters of the longest text of a map; ValueError if the map is damaged."""
    trie_size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 8 or trie_size % 4 or not 4 <= trie_size <= len(charsmap) - 4:
        raise ValueError(f"its trie of {trie_size:,} bytes does not fit into {len(charsmap):,} bytes")
    units = np.frombuffer(charsmap, "<u4", trie_size // 4, 4).astype(np.int64)
    texts = charsmap[4 + trie_size :]
    try:
        longest = max(map(len, texts.decode().split("\0")))
    except UnicodeDecodeError:
        raise ValueError("its texts are not UTF-8") from None
    for address in _text_addresses(units).tolist():
        if address >= len(texts) or texts[address] & 0xC0 == 0x80:
            raise ValueError(f"it has no text at {address:,}")
    return longest


def _text_addresses(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Walk the trie, level by level; return the addresses of all texts."""
    places, labels = np.arange(len(units)), units & (1 << 31 | 0xFF)
    offsets = (units >> 10) << ((units & _WIDE) >> 6)
    is_node = (labels > 0) & (labels < 256)
    parents = np.where(is_node, places ^ labels, 0)
    seen, leaves = np.zeros(len(units), bool), [np.zeros(0, np.int64)]
    bases = offsets[:1]
    while bases.size:
        if (bases | 0xFF).max() >= len(units):  # any byte may follow
            raise ValueError("its trie points beyond its end")
        is_base = np.zeros(len(units) + 256, bool)
        is_base[bases] = True
        nodes = np.flatnonzero(is_base[parents] & is_node & ~seen)
        seen[nodes] = True
        bases = offsets[nodes] ^ nodes
        leaves.append(bases[units[nodes] & _LEAF > 0])
    return units[np.unique(np.concatenate(leaves))] & (1 << 31) - 1
