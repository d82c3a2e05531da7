import random
import struct

import pytest

from polyhead.tokenizers.files import max_text_len
from tokenizers import normalizers


def charsmap(replacements):
    """A map of single ASCII characters: the root at 0 has the offset 256, each leaf a block of its own."""
    units, texts = [0] * 256 * (2 + len(replacements)), b""
    units[0] = 256 << 10
    for block, (char, text) in enumerate(replacements.items(), 2):
        node = 256 ^ ord(char)
        units[node] = ord(char) | 1 << 8 | (node ^ block * 256) << 10
        units[block * 256] = len(texts) | 1 << 31
        texts += text.encode() + b"\0"
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


def test_accepted_map_never_panics():
    content = charsmap({"a": "eins", "b": "éé", "c": ""})
    assert normalizers.Precompiled(content).normalize_str("xabc") == "xeinséé"
    assert max_text_len(content) == 4
    generator, valid_map, n_accepted = random.Random(3), charsmap({"a": "eins", "b": "éé", "z": "zwei"}), 0
    text = "".join(map(chr, range(1, 400)))
    for _ in range(300):
        content = bytearray(valid_map)
        for _ in range(generator.choice([1, 2, 20])):
            unit = 4 + 4 * (256 ^ ord(generator.choice("abz")))
            offset = generator.choice([generator.randrange(len(content)), unit, len(content) - 5])
            content[offset + generator.randrange(4)] = generator.randrange(256)
        try:
            max_text_len(bytes(content))
        except ValueError:
            continue
        n_accepted += 1
        normalizers.Precompiled(bytes(content)).normalize_str(text)
    assert 20 < n_accepted < 280


@pytest.mark.parametrize(
    "content", [b"", bytes(8), b"\xff" * 8, b"\4\0\0\0\xff\xff\xff\xffa", charsmap({})[:-4]]
)
def test_damaged_map_is_refused(content):
    with pytest.raises(ValueError, match="its trie "):
        max_text_len(content)
