"""Tests of tokenizers/mask_tokens.py."""

from __future__ import annotations

import pytest
from tests.evaluate.fill_mask_helpers import run as run

from polyhead.core.choice import Choice
from polyhead.core.registry import TOKENIZER
from polyhead.run.run import Run
from polyhead.tokenizers.mask_tokens import encode_masked
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the dog sat on the mat", "a cat runs; it is tired.", "the dogs run home, tired", "你好 世界"] * 10


@pytest.mark.parametrize("name", TOKENIZER.names())
def test_a_mask_stands_where_a_token_would(name: str) -> None:
    """The tokens beside a mask are those of the whole text, the blank before it is hidden with it."""
    t = train_tokenizer(TEXTS, Choice(name), 300)
    whole = t.encode(["the dog sat on the mat"])[0]
    tokens = t.ids_to_tokens(whole)
    if name in ("byte", "char"):
        (ids,) = encode_masked(t, ["the d<mask>g sat on the mat"])
        place = "the dog".index("o")
    else:
        (ids,) = encode_masked(t, ["the <mask> sat on the mat"])
        place = next(i for i, token in enumerate(tokens) if token.endswith("dog"))
    assert ids == [*whole[:place], t.mask_id, *whole[place + 1 :]]


def test_masks_may_be_written_in_several_ways_and_nothing_else_is_control(run: Run) -> None:
    t = run.tokenizer
    ways = ["a <mask> b", "a [MASK] b"]
    assert encode_masked(t, ways)[0] == encode_masked(t, ways)[1]
    (ids,) = encode_masked(t, ["<s> <mask></s> <pad>"])
    assert ids.count(t.mask_id) == 1 and not {t.bos_id, t.eos_id, t.pad_id} & set(ids)
    assert t.encode(["a <mask> b"])[0].count(t.mask_id) == 0  # elsewhere it stays text
