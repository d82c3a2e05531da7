"""Special tokens by role, role names of published models, sentinels, and templates around texts."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tokenizers.processors import TemplateProcessing

import tokenizers

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


# put before a text that is not the first of its row: no token merges with a control character
_BLANK_GUARD = "\x1f"


class SpecialTokensTemplate(NamedTuple):
    """Ids of the special tokens around one text or two."""

    prefix_ids: list[int]
    separator_ids: list[int]  # between two texts; empty for one
    suffix_ids: list[int]
    has_second_segment: bool  # whether the second text and its suffix have token type 1


def from_post_processor(inner: tokenizers.Tokenizer, num_texts: int) -> SpecialTokensTemplate:
    """Special tokens that the post-processor adds to one text or two: [CLS] text [SEP] second [SEP]."""
    encoding = inner.encode(*"ab"[:num_texts])
    sequence_ids = encoding.sequence_ids  # index of the text of each token
    first, last = (int(text in sequence_ids) and sequence_ids.index(text) for text in (0, num_texts - 1))
    first_end, last_end = (
        len(sequence_ids) - sequence_ids[::-1].index(text) if text in sequence_ids else first
        for text in (0, num_texts - 1)
    )
    separator_ids = encoding.ids[first_end:last] if num_texts > 1 else []
    return SpecialTokensTemplate(
        encoding.ids[:first],
        separator_ids,
        encoding.ids[last_end:],
        num_texts > 1 and encoding.type_ids[last : last + 1] == [1],
    )


def set_post_processor(
    inner: tokenizers.Tokenizer, prefix_ids: Sequence[int], suffix_ids: Sequence[int]
) -> tokenizers.Tokenizer:
    """A copy whose post-processor puts these ids around a text, and ``suffix_ids`` also between two texts."""
    copy = tokenizers.Tokenizer.from_str(inner.to_str())
    prefix_tokens, suffix_tokens = ([copy.id_to_token(i) for i in ids] for ids in (prefix_ids, suffix_ids))
    single, second = [*prefix_tokens, "$A", *suffix_tokens], ["$B", *suffix_tokens]
    copy.post_processor = TemplateProcessing(
        single=single,
        pair=[f"{piece}:{text}" for text, pieces in enumerate((single, second)) for piece in pieces],
        special_tokens=[(copy.id_to_token(i), i) for i in {*prefix_ids, *suffix_ids}],
    )
    return copy


def set_lstrip(inner: tokenizers.Tokenizer, ids: Collection[int]) -> tokenizers.Tokenizer:
    """A copy in which these special tokens include the whitespace before them (lstrip)."""
    rules = json.loads(inner.to_str())
    for token in rules["added_tokens"]:
        token["lstrip"] |= token["id"] in ids
    return tokenizers.Tokenizer.from_str(json.dumps(rules))


def prepends_first_only(rules: str) -> bool:
    """Whether this tokenizer.json puts a space before the first word of a row, but not of later texts."""
    pre_tokenizer = json.loads(rules).get("pre_tokenizer") or {}
    parts = (pre_tokenizer, *pre_tokenizer.get("pretokenizers", ()))
    return any(part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first" for part in parts)
