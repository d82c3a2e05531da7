"""Joining the bytes of tokens gives what the tokenizer itself decodes."""

import random

import pytest

import tokenizers
from polyhead.core.choice import Choice
from polyhead.generation.detokenizer import Detokenizer
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken, decoders

TEXTS = ["the dog's bone — 你好，世界! ", "a\nb  c\tnaïve 🙂👍🏽 ", "Ünïcödé wörds, and more words. "] * 20


def learned(kind, **options):
    return train_tokenizer(TEXTS, Choice.from_config({"name": kind, **options}), 600)


def with_added(kind):
    """Added tokens of either kind: special ones, and words of characters that stand for no byte, or for
    other bytes.
    """
    inner = tokenizers.Tokenizer.from_str(learned(kind).tokenizer_json)
    inner.add_tokens(["你们好", "Ġé", "two words", "dog\x00"])
    inner.add_special_tokens([AddedToken("<tool>", special=True)])
    return Tokenizer(inner)


@pytest.mark.parametrize("kind", ["bpe", "byte"])
@pytest.mark.parametrize("make", [learned, with_added])
def test_it_is_what_the_tokenizer_decodes_whatever_the_ids(make, kind):
    tokenizer, drawn = make(kind), random.Random(1)
    for length in [0, 1, 2, 3, 5, 8, 30] * 150:
        # beyond the vocabulary too: a model may have rows that are no token
        ids = [drawn.randrange(tokenizer.vocab_size + 9) for _ in range(length)]
        assert tokenizer.token_bytes.decode(ids) == tokenizer.decode([ids])[0]


@pytest.mark.parametrize("raw", ["你好🙂".encode(), b"\xe4\xbd", b"\xf0\x9f\x99", b"\xff\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80"])  # fmt: skip
def test_halves_of_characters_are_marked_as_the_tokenizer_marks_them(raw):
    tokenizer = learned("byte")
    ids = [next(i for i, said in tokenizer.token_bytes.items() if said == bytes([b])) for b in raw]
    for end in range(len(ids) + 1):
        assert tokenizer.token_bytes.decode(ids[:end]) == tokenizer.decode([ids[:end]])[0]


@pytest.mark.parametrize("kind", ["char", "unigram", "wordpiece"])
def test_others_are_left_to_the_tokenizer(kind):
    assert learned(kind).token_bytes is None


def test_a_decoder_that_does_more_than_join_is_left_to_itself():
    inner = tokenizers.Tokenizer.from_str(learned("bpe").tokenizer_json)
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("dog", "cat")])
    tokenizer = Tokenizer(inner)
    assert tokenizer.token_bytes is None
    stream = Detokenizer.for_tokenizer(tokenizer, [], [])
    ids = tokenizer.encode(["the dog"])[0]
    assert "".join([*map(stream.feed, ids), stream.flush()]) == tokenizer.decode([ids])[0] == "the cat"
