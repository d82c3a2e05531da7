"""The five tokens with a role, and the files that say which token plays which."""

from __future__ import annotations

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
ROLES = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
UNK = ROLES["unk_token"]
# Every special token starts with it, so where it stands alone no text can spell one.
OPENING = "<"
