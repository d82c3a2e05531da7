"""The five tokens with a role, the files that say which token plays which, and the names of sentinels."""

from __future__ import annotations

import re
from typing import NamedTuple

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
ROLES = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
# under which names published encoders have two of them: [CLS] begins a text and [SEP] ends it (Devlin et al., 2018)
INSTEAD = {"bos_token": "cls_token", "eos_token": "sep_token"}
# what the decoder of a published encoder-decoder reads first, and what it is made to say first
DECODERS = ("decoder_start_token", "forced_bos_token")
UNK = ROLES["unk_token"]
# Every special token starts with it, so where it stands alone no text can spell one.
OPENING = "<"
# how a token that is one byte is called where others are texts
BYTE = re.compile("<0x([0-9A-F]{2})>")


class Special(NamedTuple):
    """A token that no text is made of, and whether it takes the blanks before and behind it."""

    id: int
    lstrip: bool
    rstrip: bool


def sentinel(number: int) -> str:
    """The token that stands for the span of that number, from 0 (Raffel et al., 2020, named as their tokenizer does)."""
    return f"<extra_id_{number}>"
