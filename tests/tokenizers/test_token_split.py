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
def get_tokenizer(kind):
    return train_tokenizer(LINES, Choice(kind), 500)


def split_rows(splitter, rows, max_len=1000):
    ids = np.array([i for row in rows for i in row])
    ids, lengths = splitter(ids, np.array([len(row) for row in rows]), max_len)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("kind", KINDS)
def test_every_split_of_every_token_is_drawn(kind):
    tokenizer = get_tokenizer(kind)
    ids, mark = range(5, tokenizer.vocab_size), "##" if kind == "wordpiece" else ""
    tokens = dict(zip(tokenizer.ids_to_tokens(ids), ids, strict=True))
    splitter, n_pairs = TokenSplitter(tokenizer, 1.0), 0
    torch.manual_seed(1)
    for name, token in tokens.items():
        pairs = {
            (tokens[name[:end]], tokens[mark + name[end:]])
            for end in range(1, len(name))
            if name[:end] in tokens and mark + name[end:] in tokens
        }
        assert {tuple(row) for row in split_rows(splitter, [[token]] * 200)} == (pairs or {(token,)}), name
        n_pairs += len(pairs)
    assert n_pairs > 100
    rows, splitter = tokenizer.encode([*LINES[:9], ""]), TokenSplitter(tokenizer, 0.5)
    torch.manual_seed(2)
    draws = [split_rows(splitter, rows) for _ in range(3)]
    assert draws[0] != draws[1] != draws[2] != draws[0]
    for draw in draws:
        assert tokenizer.decode(draw) == tokenizer.decode(rows)
        assert sum(map(len, draw)) > 1.1 * sum(map(len, rows))
    torch.manual_seed(2)
    assert split_rows(splitter, rows) == draws[0]


def test_share_of_splits_and_uniform_choice():
    tokenizer = train_tokenizer(["abc abc abc ab ab bc bc"] * 9, Choice("bpe", lowercase=False), 270)
    a, bc, ab, c, abc = (tokenizer.token_to_id(name) for name in ("a", "bc", "ab", "c", "abc"))
    torch.manual_seed(3)
    ids, lengths = TokenSplitter(tokenizer, 0.3)(np.array([a, abc] * 20_000), np.array([40_000]), 10**6)
    counts = Counter(ids.tolist())
    assert lengths.tolist() == [len(ids)]
    # standard errors: 65 tokens of 20,000, 39 of each split
    assert counts[abc] == pytest.approx(14_000, abs=260)
    assert counts[ab] == counts[c] == pytest.approx(3_000, abs=200)
    assert counts[bc] == counts[a] - 20_000 == pytest.approx(3_000, abs=200)
    assert sum(counts.values()) == 40_000 + counts[ab] + counts[bc]
    tokenizer = get_tokenizer("bpe")
    rows = tokenizer.encode([line[: 40 + 20 * n] for n, line in enumerate(LINES[:9])])
    max_len, splitter = len(rows[-1]), TokenSplitter(tokenizer, 0.3)
    torch.manual_seed(4)
    draws = [split_rows(splitter, rows, max_len) for _ in range(50)]
    assert all(draw[-1] == rows[-1] for draw in draws)
    assert max(len(row) for draw in draws for row in draw) == max_len
    assert tokenizer.decode(draws[0]) == tokenizer.decode(rows) and draws[0][0] != rows[0]


def test_byte_token_is_not_split_as_text():
    """<0x41> is one token that decodes to A, and not "<0" and "x41>"."""
    vocab = [*SPECIAL_TOKENS, "<0x41>", "<0", "x41>", "▁", "▁ab", "a", "b"]
    pieces = [(token, -1.0) for token in vocab]
    inner = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=vocab.index("<unk>"), byte_fallback=True))
    inner.add_special_tokens(list(SPECIAL_TOKENS))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer = Tokenizer(inner)
    assert tokenizer.decode([[5], [6, 7]]) == ["A", "<0x41>"]
    message = "no token of this vocabulary consists of two others; remove token_split"
    for single in (tokenizer, get_tokenizer("byte"), get_tokenizer("char")):
        with pytest.raises(UserError, match=message):
            TokenSplitter(single, 0.1)
