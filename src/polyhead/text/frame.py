"""What stands around a text, or around two together, as the rules of a tokenizer's file say."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers.processors import TemplateProcessing

GUARD = "\x1f"  # before a text that is not the first of its row: nothing merges with a control character


class Around(NamedTuple):
    """Ids of the special tokens of a row."""

    before: list[int]
    between: list[int]  # of two texts; none if there is one
    after: list[int]
    apart: bool  # whether the second text, with what follows it, is another segment


def ruled(inner: tokenizers.Tokenizer, texts: int) -> Around:
    """What the rules put around one text or two, such as [CLS] text [SEP] second [SEP]; none where they put nothing."""
    made = inner.encode(*"ab"[:texts])
    of = made.sequence_ids  # the number of the text that each token is from
    first, last = (int(text in of) and of.index(text) for text in (0, texts - 1))
    end, stop = (len(of) - of[::-1].index(text) if text in of else first for text in (0, texts - 1))
    between = made.ids[end:last] if texts > 1 else []
    return Around(
        made.ids[:first], between, made.ids[stop:], texts > 1 and made.type_ids[last : last + 1] == [1]
    )


def with_rules(
    inner: tokenizers.Tokenizer, before: Sequence[int], after: Sequence[int]
) -> tokenizers.Tokenizer:
    """A copy whose rules put these ids around a text, and those ``after`` it also between two texts."""
    made = tokenizers.Tokenizer.from_str(inner.to_str())
    first, last = ([made.id_to_token(i) for i in ids] for ids in (before, after))
    one, two = [*first, "$A", *last], ["$B", *last]
    made.post_processor = TemplateProcessing(
        single=one,
        pair=[f"{piece}:{text}" for text, pieces in enumerate((one, two)) for piece in pieces],
        special_tokens=[(made.id_to_token(i), i) for i in {*before, *after}],
    )
    return made


def hiding(inner: tokenizers.Tokenizer, ids: Collection[int]) -> tokenizers.Tokenizer:
    """A copy in which these special tokens take the blank before them."""
    rules = json.loads(inner.to_str())
    for token in rules["added_tokens"]:
        token["lstrip"] |= token["id"] in ids
    return tokenizers.Tokenizer.from_str(json.dumps(rules))


def blank_once(rules: str) -> bool:
    """Whether these rules put a blank before the first word of a row, and of no other text in it."""
    cut = json.loads(rules).get("pre_tokenizer") or {}
    parts = (cut, *cut.get("pretokenizers", ()))
    return any(part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first" for part in parts)
