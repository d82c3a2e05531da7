"""The five tokens with a role, the files that say which token plays which, and the names of sentinels."""

from __future__ import annotations

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
ROLES = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
UNK = ROLES["unk_token"]
# Every special token starts with it, so where it stands alone no text can spell one.
OPENING = "<"


def sentinel(number: int) -> str:
    """The token that stands for the span of that number, from 0 (Raffel et al., 2020, named as their tokenizer does)."""
    return f"<extra_id_{number}>"
