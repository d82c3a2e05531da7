import unicodedata

import pytest

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS
from polyhead.tokenizers.train_tokenizer import train_tokenizer

KINDS = TOKENIZER.names()


def test_wordpiece_splits_as_defined(get_tokenizer):
    tokenizer = get_tokenizer("wordpiece")
    assert tokenizer.ids_to_tokens(tokenizer.encode(["我们今天"])[0]) == ["▁", "我", "们", "今", "天"]
    assert tokenizer.decode(tokenizer.encode(["狗跑, 今天。"])) == ["狗跑, 今天。"]
    vocab = {token: i for i, token in enumerate(tokenizer.ids_to_tokens(range(tokenizer.vocab_size)))}

    def encode_longest_first(word):
        ids, start = [], 0
        while start < len(word):
            candidates = ["##" * (start > 0) + word[start:end] for end in range(len(word), start, -1)]
            piece = next(p for p in candidates if p in vocab)
            ids.append(vocab[piece])
            start += len(piece) - 2 * (start > 0)
        return ids

    for word in ("walks", "shirtdog", "tiredman"):
        assert tokenizer.encode([word])[0] == encode_longest_first("▁" + word)
    tokenizer = train_tokenizer(SENTENCES * 3, Choice("wordpiece"), 600)
    for text in SENTENCES:
        (ids,) = tokenizer.encode([text * 30])
        assert len(text * 30) > 400 and tokenizer.unk_id not in ids
        assert tokenizer.decode([ids]) == [text * 30]


def test_byte_fallback_and_frequent_characters():
    texts = ["the dog runs", "the man sits"] * 10
    plain, fallback = (
        train_tokenizer(texts, Choice("unigram", byte_fallback=on), 400) for on in (False, True)
    )
    assert plain.unk_id in plain.encode(["the 狗"])[0]
    assert fallback.unk_id not in fallback.encode(["the 狗"])[0]
    assert fallback.decode(fallback.encode(["the 狗 😀 runs"])) == ["the 狗 😀 runs"]
    tokenizer = train_tokenizer(["aaabbc"], Choice("char"), 7)
    assert tokenizer.ids_to_tokens(range(tokenizer.vocab_size)) == [*SPECIAL_TOKENS, "a", "b"]
    assert tokenizer.encode(["cab"]) == [[tokenizer.unk_id, 5, 6]]
    chars = train_tokenizer(["aaab", "aac"], Choice("char", min_frequency=2), 100)
    assert chars.ids_to_tokens(range(5, chars.vocab_size)) == ["a"]
    rare = train_tokenizer(["ää ö"] * 9, Choice("wordpiece", alphabet=2), 600)  # ä and the mark of a space
    assert rare.unk_id in rare.encode(["ö"])[0] and rare.unk_id not in rare.encode(["ä"])[0]
    sizes = [train_tokenizer(["zyx zyx"], Choice("bpe", min_frequency=n), 300).vocab_size for n in (1, 3)]
    assert sizes[1] == 261 < sizes[0]


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase_option(kind):
    tokenizer = train_tokenizer(["The Dog", "ÄRGER the dog"] * 5, Choice(kind, lowercase=True), 400)
    assert tokenizer.encode(["THE DOG ärger"]) == tokenizer.encode(["the dog ÄRGER"])
    assert tokenizer.decode(tokenizer.encode(["The ÄRGER"])) == ["the ärger"]


@pytest.mark.parametrize(("kind", "size"), [("bpe", 100), ("char", 5), ("unigram", 50), ("wordpiece", 50)])
def test_too_small_vocab_size_is_refused(kind, size, texts):
    message = r"vocab_size is \d+, but \d+ single symbols and 5 special tokens need \d+"
    with pytest.raises(UserError, match=message):
        train_tokenizer(texts, Choice(kind), size)
    with pytest.raises(UserError, match="'nfd' is not one of none, nfc, nfkc"):
        train_tokenizer(["a"], Choice(kind, normalize="nfd"), 300)


SENTENCES = ["ຂ້ອຍມັກໝາຂອງຂ້ອຍຫຼາຍ", "ខ្ញុំស្រឡាញ់ឆ្កែរបស់ខ្ញុំ", "ငါ့ခွေးလေးကိုငါချစ်တယ်"]
SENTENCES += ["ང་ཚོའི་ཁྱི་ནི་ཆུང་ངུ་ཡིན", "ฉันรักสุนัขของฉัน", "a" * 30]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_normalize_option(kind, form):
    text, option = "Ka\u0308se und \uff21\ufb01 か\u3099 \u0958", form.lower()
    expected = unicodedata.normalize(form, text)
    tokenizer = train_tokenizer([text, expected] * 9, Choice(kind, normalize=option), 500)
    assert tokenizer.encode([text]) == tokenizer.encode([expected])
    assert tokenizer.decode(tokenizer.encode([text])) == [expected]
    if kind in ("char", "unigram"):  # no part of the vocabulary is used by decomposed text alone
        assert "\u0308" not in tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    plain = train_tokenizer([text, expected] * 9, Choice(kind), 500)
    assert plain.decode(plain.encode([text])) == [text]
    lower = train_tokenizer([text] * 9, Choice(kind, normalize=option, lowercase=True), 500)
    assert lower.decode(lower.encode([text])) == [expected.lower()]
