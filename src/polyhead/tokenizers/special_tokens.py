"""Default special tokens by role, role names of published models, and the names of sentinels."""

from __future__ import annotations

import re
from typing import NamedTuple

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
SPECIAL_TOKENS_MAP = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
# role names in published encoders: [CLS] starts a text and [SEP] ends it (Devlin et al., 2018)
ROLE_ALIASES = {"bos_token": "cls_token", "eos_token": "sep_token"}
# first decoder input and forced first output of published encoder-decoders
TARGET_LANGUAGE_TOKEN = re.compile(r"\A>>.+<<")  # language tokens of OPUS-MT
DECODER_ROLES = ("decoder_start_token", "forced_bos_token")
UNK_TOKEN = SPECIAL_TOKENS_MAP["unk_token"]
# every special token starts with it, so if it is always a word by itself no text can spell one
SPECIAL_PREFIX = "<"
# name of a byte token in a vocabulary of texts (byte fallback)
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class AddedToken(NamedTuple):
    """A special token, and whether it includes the whitespace before and after it."""

    id: int
    lstrip: bool
    rstrip: bool


def sentinel_token(number: int) -> str:
    """The sentinel token of masked span ``number``, from 0, as in T5's tokenizer (Raffel et al., 2020)."""
    return f"<extra_id_{number}>"
