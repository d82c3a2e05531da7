"""Tests of tokenizers/trainers.py."""

import unicodedata
from collections.abc import Callable

import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

NAMES = TOKENIZER.names()

Trained = Callable[[str], Tokenizer]


def test_all_kinds_are_there() -> None:
    assert NAMES == ["bpe", "byte", "char", "unigram", "wordpiece"]


def test_wordpiece_takes_each_han_character_as_a_word(trained: Trained) -> None:
    t = trained("wordpiece")
    assert t.ids_to_tokens(t.encode(["我们今天"])[0]) == ["▁", "我", "们", "今", "天"]
    assert t.decode(t.encode(["狗跑, 今天。"])) == ["狗跑, 今天。"]


def test_wordpiece_takes_the_longest_piece_first(trained: Trained, texts: list[str]) -> None:
    t = trained("wordpiece")
    vocab = {token: i for i, token in enumerate(t.ids_to_tokens(range(t.vocab_size)))}

    def longest_first(word: str) -> list[int]:
        ids, start = [], 0
        while start < len(word):
            marks = ["##" * (start > 0) + word[start:end] for end in range(len(word), start, -1)]
            piece = next(p for p in marks if p in vocab)
            ids.append(vocab[piece])
            start += len(piece) - 2 * (start > 0)
        return ids

    for word in ("walks", "shirtdog", "tiredman"):
        assert t.encode([word])[0] == longest_first("▁" + word)


def test_unknown_characters_become_bytes_with_byte_fallback() -> None:
    texts = ["the dog runs", "the man sits"] * 10
    plain, fallback = (
        train_tokenizer(texts, Choice("unigram", byte_fallback=on), 400) for on in (False, True)
    )
    assert plain.unk_id in plain.encode(["the 狗"])[0]
    assert fallback.unk_id not in fallback.encode(["the 狗"])[0]
    assert fallback.decode(fallback.encode(["the 狗 😀 runs"])) == ["the 狗 😀 runs"]


@pytest.mark.parametrize("name", NAMES)
def test_lowercase_is_an_option(name: str) -> None:
    t = train_tokenizer(["The Dog", "ÄRGER the dog"] * 5, Choice(name, lowercase=True), 400)
    assert t.encode(["THE DOG ärger"]) == t.encode(["the dog ÄRGER"])
    assert t.decode(t.encode(["The ÄRGER"])) == ["the ärger"]


def test_rare_characters_and_pairs_are_left_out() -> None:
    t = train_tokenizer(["aaab", "aac"], Choice("char", min_frequency=2), 100)
    assert t.ids_to_tokens(range(5, t.vocab_size)) == ["a"]
    once, often = (train_tokenizer(["zyx zyx"], Choice("bpe", min_frequency=n), 300) for n in (1, 3))
    assert often.vocab_size == 261 < once.vocab_size


def test_char_keeps_the_most_frequent_characters() -> None:
    t = train_tokenizer(["aaabbc"], Choice("char"), 7)
    assert t.ids_to_tokens(range(t.vocab_size)) == [*SPECIAL_TOKENS, "a", "b"]
    assert t.encode(["cab"]) == [[t.unk_id, 5, 6]]


@pytest.mark.parametrize(("name", "size"), [("bpe", 100), ("char", 5), ("unigram", 50), ("wordpiece", 50)])
def test_a_vocabulary_too_small_is_refused_with_the_size_needed(
    name: str, size: int, texts: list[str]
) -> None:
    with pytest.raises(
        UserError, match=r"vocab_size is \d+, but \d+ single symbols and 5 special tokens need \d+"
    ):
        train_tokenizer(texts, Choice(name), size)


UNSPACED = [
    "ຂ້ອຍມັກໝາຂອງຂ້ອຍຫຼາຍ",
    "ខ្ញុំស្រឡាញ់ឆ្កែរបស់ខ្ញុំ",
    "ငါ့ခွေးလေးကိုငါချစ်တယ်",
    "ང་ཚོའི་ཁྱི་ནི་ཆུང་ངུ་ཡིན",
    "ฉันรักสุนัขของฉัน",
    "a" * 30,
]


@pytest.mark.parametrize("text", UNSPACED)
def test_wordpiece_knows_long_sentences_without_spaces(text: str) -> None:
    t = train_tokenizer(UNSPACED * 3, Choice("wordpiece"), 600)
    sentence = text * 30
    (ids,) = t.encode([sentence])
    assert len(sentence) > 400 and t.unk_id not in ids
    assert t.decode([ids]) == [sentence]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("normalize", "form"), [("nfc", "NFC"), ("nfkc", "NFKC")])
def test_texts_are_normalized_on_request(name: str, normalize: str, form: str) -> None:
    text = "Ka\u0308se und \uff21\ufb01 か\u3099 \u0958"
    wanted = unicodedata.normalize(form, text)
    normalized = train_tokenizer([text, wanted] * 9, Choice(name, normalize=normalize), 500)
    assert normalized.encode([text]) == normalized.encode([wanted])
    assert normalized.decode(normalized.encode([text])) == [wanted]
    if name in ("char", "unigram"):  # no part of the vocabulary is used by decomposed text alone
        assert "\u0308" not in normalized.ids_to_tokens(range(normalized.vocab_size))
    plain = train_tokenizer([text, wanted] * 9, Choice(name), 500)
    assert plain.decode(plain.encode([text])) == [text]
    both = train_tokenizer([text] * 9, Choice(name, normalize=normalize, lowercase=True), 500)
    assert both.decode(both.encode([text])) == [wanted.lower()]


def test_an_unknown_normalization_is_refused() -> None:
    with pytest.raises(UserError, match="'nfd' is not one of none, nfc, nfkc"):
        train_tokenizer(["a"], Choice("bpe", normalize="nfd"), 300)
