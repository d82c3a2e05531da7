import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tokenizers.test_growth import FAMILIES

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.detokenizer import CONTEXT_TOKENS, Detokenizer, decode_complete_chars
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the dog's bone — 你好，世界! ", "a\nb  c\tnaïve 🙂👍🏽 ", "Ünïcödé wörds, and more words. "] * 20
KINDS = ["byte", "bpe", "char", "unigram", {"name": "unigram", "byte_fallback": True}, "wordpiece"]
ALPHABET = "abé你🙂 \n-s"
words = st.text(alphabet=ALPHABET, min_size=1, max_size=4)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def tokenizer(request):
    return train_tokenizer(TEXTS, Choice.from_config(request.param), 600)


@pytest.fixture(scope="module")
def byte_tokenizer():
    return train_tokenizer(["a"], Choice("byte"), 261)


def decode_utf8(ids):
    return bytes(ids).decode(errors="replace")


def cut(text, stop):
    ends = [(text.find(word) + len(word), text.find(word)) for word in stop if word in text]
    return text[: min(ends)[1]] if ends else text


def decode_after(decode, context, ids):
    return decode([*context, *ids])[len(decode(context)) :]


def stream_text(decode, ids, stop=(), context=(), skipped_tokens=()):
    stream = Detokenizer(decode, stop, context, skipped_ids=skipped_tokens)
    text = "".join(stream.feed(token, i == len(ids) - 1) for i, token in enumerate(ids))
    assert not (stream.is_stopped and ids) or stream.feed(ids[0]) == ""
    return text


@pytest.mark.parametrize("split", [0, 1, 30, 60])
def test_space_survives_many_skipped_tokens(split):
    def decode(ids):
        return " ".join("ab"[i] for i in ids if i < 2)

    ids = [0, *[9] * 60, 1, *[9] * 5, 0]
    context, ids = ids[:split], ids[split:]
    assert stream_text(decode, ids, context=context, skipped_tokens={9}) == decode_after(decode, context, ids)


@pytest.mark.acceptance("C7", "C8")
@given(data=st.data())
def test_any_split_of_bytes_streams_to_first_stop(data):
    """Nothing is held back but what may become a stop string or a complete character."""
    text, stop = data.draw(st.text(alphabet=ALPHABET, max_size=60)), data.draw(st.lists(words, max_size=3))
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=len(raw))) | {0, len(raw)})
    parts = [raw[a:b] for a, b in itertools.pairwise(cuts)]

    def decode(ids):
        return b"".join(parts[i] for i in ids).decode(errors="replace")

    stream, streamed_text = Detokenizer(decode, stop), ""
    for i in range(len(parts)):
        new = stream.feed(i, i == len(parts) - 1)
        assert "\ufffd" not in new
        streamed_text += new
        assert cut(text, stop).startswith(streamed_text)
        if not stream.is_stopped and i < len(parts) - 1:
            buffer = decode(range(i + 1)).rstrip("\ufffd")[len(streamed_text) :]
            assert not buffer or any(word.startswith(buffer) and word != buffer for word in stop)
    assert streamed_text == cut(text, stop) and stream.is_stopped == any(word in text for word in stop)


@given(data=st.data())
def test_long_texts_of_every_tokenizer_stream_exactly(tokenizer, data):
    def decode(ids):
        return tokenizer.decode([ids])[0]

    pieces = st.sampled_from([*TEXTS[:3], "你", "🙂", " ", "zz", "\n", "ᚠᛇᚻ᛫ᛒᛦᚦ" * 3])
    (ids,) = tokenizer.encode(["".join(data.draw(st.lists(pieces, min_size=1, max_size=30)))])
    split = data.draw(st.integers(0, min(len(ids), 40)))
    while split and decode(ids[:split]).endswith("\ufffd"):  # a prompt ends with a complete character
        split -= 1
    context, ids = ids[:split], ids[split:]
    stop = data.draw(st.lists(words, max_size=2))
    text = stream_text(decode, ids, stop, context, tokenizer.skipped_ids)
    assert text == cut(decode_after(decode, context, ids), stop)


@given(ids=st.lists(st.integers(0, 260), max_size=80))
def test_invalid_bytes_stream_as_they_decode(byte_tokenizer, ids):
    def decode(ids):
        return byte_tokenizer.decode([ids])[0]

    text = stream_text(decode, ids)
    assert text == decode(ids).rstrip("\ufffd") and decode_complete_chars(byte_tokenizer, [ids]) == [text]


@given(st.binary(max_size=40), st.binary(max_size=5))
def test_stop_string_leaves_no_partial_character(head, tail):
    ids = list(head + b"\n" + tail)
    assert stream_text(decode_utf8, ids, ["\n"]) == cut(decode_utf8(ids), ["\n"]).rstrip("\ufffd")
    stream = Detokenizer(decode_utf8, trim=True)
    pieces = [stream.feed(token) for token in b" a \xff b \xe4\xbd \xe4"]
    assert "".join(pieces) + stream.flush() == "a \ufffd b"


def test_length_limit_drops_only_a_partial_character(tokenizer):
    (ids,) = tokenizer.encode(["a 你好🙂, é"])
    full = tokenizer.decode([ids])[0]
    for size in range(len(ids) + 1):
        stream = Detokenizer.for_tokenizer(tokenizer, (), ())
        text = "".join(stream.feed(token, i == size - 1) for i, token in enumerate(ids[:size]))
        assert full.startswith(text) and text == decode_complete_chars(tokenizer, [ids[:size]])[0]


@pytest.mark.acceptance("E12")
@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("family", [*FAMILIES, "skipped", "invalid"])
def test_cost_per_token_is_constant(tokenizer, family, trim):
    """Neither the tokens decoded nor the characters buffered grow with the text, whatever it is made of."""
    if family == "skipped":
        ids = [tokenizer.unk_id, tokenizer.mask_id] * 500
    elif family == "invalid":  # bytes that continue a character that never started
        names = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
        ids = [i for i, name in enumerate(names) if name in ("<0x80>", "Ģ")] * 1000
    else:
        (ids,) = tokenizer.encode([FAMILIES[family] * 300])
    ids = [*tokenizer.encode(["the dog"])[0], *ids, *tokenizer.encode(["dog"])[0]]
    sizes, text = [], ""

    def decode(ids):
        sizes.append(len(ids))
        return tokenizer.decode([ids])[0]

    stream = Detokenizer(decode, ["zzz", "  \n x"], trim=trim, skipped_ids=tokenizer.skipped_ids)
    for i, token in enumerate(ids):
        text += stream.feed(token, i == len(ids) - 1)
        assert len(stream.held_text) < 5
    full = tokenizer.decode([ids])[0]
    if family == "replacement":  # its bytes may be decoded as several of it
        text, full = (re.sub("\ufffd+", "\ufffd", x) for x in (text, full))
    assert text == (full.strip() if trim else full) and max(sizes) <= 4 * CONTEXT_TOKENS + 1
    assert sum(sizes) <= 4 * CONTEXT_TOKENS * len(ids)


@pytest.mark.parametrize("n_bytes", range(6))
def test_byte_context_is_not_cut_inside_a_character(n_bytes):
    """Where bytes are joined run by run, one that starts inside a character spoils all of it."""
    tokenizer = train_tokenizer(["a b"], Choice.from_config({"name": "unigram", "byte_fallback": True}), 400)
    context, ids = tokenizer.encode(["🙂" * 9 + "你🙂é"[: n_bytes % 3] + "a" * (n_bytes // 3), "🙂你"])
    stream = Detokenizer(lambda ids: tokenizer.decode([ids])[0], context_ids=context)
    assert "".join(map(stream.feed, ids[1:])) == "🙂你"  # all but the blank before a first word


@pytest.mark.acceptance("E12")
def test_buffered_text_and_skipped_context(byte_tokenizer):
    stream = Detokenizer(decode_utf8, ["bcd"])
    assert [stream.feed(t) for t in b"abc"] == ["a", "", ""] and stream.flush() == "bc"
    stream = Detokenizer(decode_utf8)
    assert [stream.feed(t) for t in "é".encode()[:1]] == [""] and stream.flush() == ""
    with pytest.raises(UserError, match="a stop string is empty; it would end every text"):
        Detokenizer(str, ["a", ""])
    t, sizes = byte_tokenizer, []
    (ids,) = t.encode(["你好"])

    def decode(ids):
        sizes.append(len(ids))
        return t.decode([ids])[0]

    stream = Detokenizer(decode, context_ids=[*ids, *[t.mask_id] * 4000], skipped_ids=t.skipped_ids)
    assert "".join(map(stream.feed, ids)) == "你好" and sum(sizes) <= 20 * 2 * len(ids)
