"""Texts in which a person has put masks for a model to fill."""

from __future__ import annotations

import json
from collections.abc import Sequence

import tokenizers

from polyhead.errors import UserError
from polyhead.text.tokenizer import Tokenizer
from polyhead.text.words import words_of

WRITTEN = ("<mask>", "[MASK]")  # understood besides what the tokenizer itself calls its mask


def encode_masked(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Texts to ids, where the mask's name stands for the mask; other special tokens are only text.

    Where tokens hold the blank before their word, the blank before a mask belongs to what is hidden.
    """
    tokenizer.encode(texts)  # whatever is no text is told here
    name, named = _named(tokenizer, texts)
    for number, text in enumerate(named, 1):
        if name not in text:
            raise UserError(f"text {number} has no mask; put {name} where a word is to be filled in")
    rules = json.loads(tokenizer.rules)
    kept = [token for token in rules["added_tokens"] if token["id"] != tokenizer.mask_id]
    how = {
        "single_word": False,
        "lstrip": words_of(tokenizer).blank_before,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    rules["added_tokens"] = sorted(
        [*kept, {"id": tokenizer.mask_id, "content": name} | how], key=lambda token: int(token["id"])
    )
    reading = tokenizers.Tokenizer.from_str(json.dumps(rules))
    reading.no_padding()
    reading.no_truncation()
    reading.encode_special_tokens = True
    return [encoding.ids for encoding in reading.encode_batch(named, add_special_tokens=False)]


def hiding(tokenizer: Tokenizer) -> Tokenizer:
    """The same, whose mask and sentinels take the blank before them in its rules, where tokens hold that: so they are learned."""
    if not words_of(tokenizer).blank_before:
        return tokenizer
    mask = {i for role, i in tokenizer.ids.items() if role == "mask_token"}
    return tokenizer.hiding(mask.union(tokenizer.sentinel_ids))


def count_masks(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """How many masks each text has."""
    name, named = _named(tokenizer, texts)
    return [text.count(name) for text in named]


def _named(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[str, list[str]]:
    """The tokenizer's own name of the mask, and the texts with it."""
    (name,) = tokenizer.tokens([tokenizer.mask_id])
    return name, [text.replace(WRITTEN[0], name).replace(WRITTEN[1], name) for text in texts]
