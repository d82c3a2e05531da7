"""Tokens as two shorter ones: every way there is, found by trying all pairs, and how often each is taken."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

import tokenizers
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
from polyhead.tokenizers.token_split import TokenSplitter
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import decoders, models

KINDS = ("bpe", "unigram", "wordpiece")
PARTS = ["walk", "talk", "sing", "er", "s", "ing", "ed", "un", "re", "狗", "猫", "大狗", "，", "é"]
WORDS = [first + second + third for first in PARTS for second in PARTS for third in PARTS]
LINES = [" ".join(WORDS[i::97]) for i in range(97)]


@cache
def trained(kind: str) -> Tokenizer:
    return train_tokenizer(LINES, Choice(kind), 500)


def joined(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([i for row in rows for i in row]), np.array([len(row) for row in rows])


def split(halves: TokenSplitter, rows: list[list[int]], most: int = 1000) -> list[list[int]]:
    ids, lengths = halves(*joined(rows), most)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_one_splits_every_token_that_some_two_others_say(kind: str) -> None:
    tokenizer, own = trained(kind), range(5, trained(kind).vocab_size)
    names, mark = (
        dict(zip(tokenizer.ids_to_tokens(own), own, strict=True)),
        "##" if kind == "wordpiece" else "",
    )
    halves, counted = TokenSplitter(tokenizer, 1.0), 0
    torch.manual_seed(1)
    for name, token in names.items():
        pairs = [
            (a, b)
            for a in names
            if name.startswith(a)
            for b in names
            if name == a + b.removeprefix(mark) and b.startswith(mark)
        ]
        wanted = {(names[a], names[b]) for a, b in pairs} or {(token,)}
        assert {tuple(row) for row in split(halves, [[token]] * 200)} == wanted, name
        counted += len(pairs)
    assert counted > 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_stays_the_same(kind: str) -> None:
    tokenizer = trained(kind)
    rows, halves = tokenizer.encode([*LINES[:9], ""]), TokenSplitter(tokenizer, 0.5)
    torch.manual_seed(2)
    several = [split(halves, rows) for _ in range(3)]
    assert several[0] != several[1] != several[2] != several[0]
    for found in several:
        assert tokenizer.decode(found) == tokenizer.decode(rows)
        assert sum(map(len, found)) > 1.1 * sum(map(len, rows))
    torch.manual_seed(2)
    assert split(halves, rows) == several[0]


def test_the_share_is_of_the_tokens_that_are_two_and_every_way_is_as_likely() -> None:
    tokenizer = train_tokenizer(["abc abc abc ab ab bc bc"] * 9, Choice("bpe", lowercase=False), 270)
    a, bc, ab, c, abc = (
        tokenizer.token_to_id(name) if name in tokenizer.ids_to_tokens(range(tokenizer.vocab_size)) else None
        for name in ("a", "bc", "ab", "c", "abc")
    )
    assert None not in (a, bc, ab, c, abc)
    torch.manual_seed(3)
    ids, lengths = TokenSplitter(tokenizer, 0.3)(np.array([a, abc] * 20_000), np.array([40_000]), 10**6)
    found = Counter(ids.tolist())
    assert lengths.tolist() == [len(ids)]
    # standard errors: 65 tokens of 20,000, 39 of each way
    assert found[abc] == pytest.approx(14_000, abs=260)
    assert found[ab] == found[c] == pytest.approx(3_000, abs=200)
    assert found[bc] == found[a] - 20_000 == pytest.approx(3_000, abs=200)
    assert sum(found.values()) == 40_000 + found[ab] + found[bc]


def test_a_row_without_room_stays_as_it_is() -> None:
    tokenizer = trained("bpe")
    rows = tokenizer.encode([line[: 40 + 20 * n] for n, line in enumerate(LINES[:9])])
    most, halves = len(rows[-1]), TokenSplitter(tokenizer, 0.3)
    torch.manual_seed(4)
    several = [split(halves, rows, most) for _ in range(50)]
    assert all(found[-1] == rows[-1] for found in several)
    assert max(len(row) for found in several for row in found) == most
    assert tokenizer.decode(several[0]) == tokenizer.decode(rows) and several[0][0] != rows[0]


def test_a_byte_by_name_is_no_text() -> None:
    """<0x41> is one token that says A, and never "<0" and "x41>"."""
    vocab = [*SPECIAL_TOKENS, "<0x41>", "<0", "x41>", "▁", "▁ab", "a", "b"]
    inner = tokenizers.Tokenizer(
        models.Unigram([(token, -1.0) for token in vocab], unk_id=vocab.index("<unk>"), byte_fallback=True)
    )
    inner.add_special_tokens(list(SPECIAL_TOKENS))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer = Tokenizer(inner)
    assert tokenizer.decode([[5], [6, 7]]) == ["A", "<0x41>"]
    with pytest.raises(UserError, match="no token of this vocabulary consists of two others"):
        TokenSplitter(tokenizer, 1.0)


@pytest.mark.parametrize("kind", ["byte", "char"])
def test_a_vocabulary_of_single_signs_is_refused(kind: str) -> None:
    with pytest.raises(
        UserError, match="no token of this vocabulary consists of two others; remove token_split"
    ):
        TokenSplitter(trained(kind), 0.1)
