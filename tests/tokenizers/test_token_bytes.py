import random
from functools import cache

import pytest

import tokenizers
from polyhead.core.choice import Choice
from polyhead.generation.detokenizer import Detokenizer
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken, decoders

TEXTS = ["the dog's bone — 你好，世界! ", "a\nb  c\tnaïve 🙂👍🏽 ", "Ünïcödé wörds, and more words. "] * 20


@cache
def plain(kind):
    return train_tokenizer(TEXTS, Choice(kind), 600)


def with_added_tokens(kind):
    inner = tokenizers.Tokenizer.from_str(plain(kind).tokenizer_json)
    inner.add_tokens(["你们好", "Ġé", "two words", "dog\x00"])
    inner.add_special_tokens([AddedToken("<tool>", special=True)])
    return Tokenizer(inner)


@pytest.mark.parametrize("kind", ["bpe", "byte"])
@pytest.mark.parametrize("build", [plain, with_added_tokens])
def test_bytes_of_random_ids_equal_decoding(build, kind):
    tokenizer, generator = build(kind), random.Random(1)
    for length in [0, 1, 2, 3, 5, 8, 30] * 50:
        # beyond the vocabulary too: a model may have rows without a token
        ids = [generator.randrange(tokenizer.vocab_size + 9) for _ in range(length)]
        assert tokenizer.token_bytes.decode(ids) == tokenizer.decode([ids])[0]


INVALID = [b"\xe4\xbd", b"\xf0\x9f\x99", b"\xff\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]


@pytest.mark.parametrize("raw", ["你好🙂".encode(), *INVALID])
def test_incomplete_characters_as_in_decoding(raw):
    tokenizer = plain("byte")
    ids = [next(i for i, data in tokenizer.token_bytes.items() if data == bytes([b])) for b in raw]
    for end in range(len(ids) + 1):
        assert tokenizer.token_bytes.decode(ids[:end]) == tokenizer.decode([ids[:end]])[0]


def test_other_decoders_have_no_token_bytes():
    inner = tokenizers.Tokenizer.from_str(plain("bpe").tokenizer_json)
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("dog", "cat")])
    tokenizer = Tokenizer(inner)
    others = [plain(kind) for kind in ("char", "unigram", "wordpiece")]
    assert all(one.token_bytes is None for one in (tokenizer, *others))
    stream, ids = Detokenizer.for_tokenizer(tokenizer, [], []), tokenizer.encode(["the dog"])[0]
    assert "".join([*map(stream.feed, ids), stream.flush()]) == tokenizer.decode([ids])[0] == "the cat"
