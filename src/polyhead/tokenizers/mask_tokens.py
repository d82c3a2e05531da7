"""Encode texts with mask tokens for mask filling."""

from __future__ import annotations

import json
from collections.abc import Sequence

import tokenizers
from polyhead.core.errors import UserError
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.word_boundaries import find_word_boundaries

_MASK_ALIASES = ("<mask>", "[MASK]")  # accepted in addition to the tokenizer's own mask token


def encode_masked(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts to ids, with the mask token recognised; other special tokens are plain text.

    If tokens include the space before their word, the mask includes the space before it.
    """
    tokenizer.encode(texts)  # raises UserError for invalid texts
    name, normalized = _normalize_masks(tokenizer, texts)
    for number, text in enumerate(normalized, 1):
        if name not in text:
            raise UserError(f"text {number} has no mask; put {name} in place of a word")
    rules = json.loads(tokenizer.tokenizer_json)
    other_tokens = [token for token in rules["added_tokens"] if token["id"] != tokenizer.mask_id]
    mask_rules = {
        "single_word": False,
        "lstrip": find_word_boundaries(tokenizer).has_blank_before,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    rules["added_tokens"] = sorted(
        [*other_tokens, {"id": tokenizer.mask_id, "content": name} | mask_rules],
        key=lambda token: int(token["id"]),
    )
    mask_tokenizer = tokenizers.Tokenizer.from_str(json.dumps(rules))
    mask_tokenizer.no_padding()
    mask_tokenizer.no_truncation()
    mask_tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in mask_tokenizer.encode_batch(normalized, add_special_tokens=False)]


def with_lstrip_masks(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer whose mask and sentinels include the space before them, as in training, if tokens do."""
    if not find_word_boundaries(tokenizer).has_blank_before:
        return tokenizer
    mask = {i for role, i in tokenizer.role_ids.items() if role == "mask_token"}
    return tokenizer.with_lstrip(mask.union(tokenizer.sentinel_ids))


def count_masks(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Number of masks in each text."""
    name, normalized = _normalize_masks(tokenizer, texts)
    return [text.count(name) for text in normalized]


def _normalize_masks(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[str, list[str]]:
    """The tokenizer's mask token, and the texts with aliases replaced by it."""
    (name,) = tokenizer.ids_to_tokens([tokenizer.mask_id])
    return name, [text.replace(_MASK_ALIASES[0], name).replace(_MASK_ALIASES[1], name) for text in texts]
