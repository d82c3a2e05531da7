"""Tests of tokenizers/special_tokens.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from polyhead.core.choice import Choice
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

NAMES = TOKENIZER.names()


@pytest.mark.parametrize("name", NAMES)
def test_sentinels_are_the_last_tokens_in_order(name: str, texts: list[str], tmp_path: Path) -> None:
    with_, without = (train_tokenizer(texts, Choice(name), 400, sentinels=n) for n in (7, 0))
    assert with_.sentinel_ids == list(range(with_.vocab_size - 7, with_.vocab_size))
    assert with_.ids_to_tokens(with_.sentinel_ids) == [f"<extra_id_{n}>" for n in range(7)]
    assert without.sentinel_ids == [] and without.special_ids == [0, 1, 2, 3, 4]
    assert with_.special_ids == [0, 1, 2, 3, 4, *with_.sentinel_ids]
    assert with_.vocab_size <= 400
    assert not set(with_.encode(["a <extra_id_0> <extra_id_3> b"])[0]) & set(with_.sentinel_ids)
    assert with_.decode([[*with_.sentinel_ids[:2], *with_.encode(["a man"])[0]]]) == ["a man"]
    with_.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.sentinel_ids, again.special_ids, again.sha256) == (
        with_.sentinel_ids,
        with_.special_ids,
        with_.sha256,
    )
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())[
        "additional_special_tokens"
    ] == with_.ids_to_tokens(with_.sentinel_ids)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.convert_tokens_to_ids("<extra_id_6>") == with_.sentinel_ids[6]
    assert "<extra_id_6>" in theirs.all_special_tokens


Trained = Callable[[str], Tokenizer]


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_come_first_in_their_order(name: str, trained: Trained) -> None:
    t = trained(name)
    assert [t.pad_id, t.bos_id, t.eos_id, t.unk_id, t.mask_id] == [0, 1, 2, 3, 4]
    assert t.ids_to_tokens(range(5)) == list(SPECIAL_TOKENS)
    assert t.vocab_size <= 400
    assert all(0 <= i < t.vocab_size for row in t.encode(["a man", "你好"]) for i in row)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_a_special_token_typed_by_a_user_is_text(name: str, special: str, trained: Trained) -> None:
    t = trained(name)
    for text in (special, f"a {special} word", f"dog{special}s", special * 3):
        ids = t.encode([text])[0]
        assert not {t.pad_id, t.bos_id, t.eos_id, t.mask_id} & set(ids)
        if name != "char":  # whose few characters need not hold every letter
            assert t.decode([ids]) == [text]
