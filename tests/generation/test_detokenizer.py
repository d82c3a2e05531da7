"""Text that comes piece by piece is the text that comes at once."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.detokenizer import CONTEXT_TOKENS, Detokenizer, decode_complete_chars
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the dog's bone — 你好，世界! ", "a\nb  c\tnaïve 🙂👍🏽 ", "Ünïcödé wörds, and more words. "] * 20
KINDS = ["byte", "bpe", "char", "unigram", {"name": "unigram", "byte_fallback": True}, "wordpiece"]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def tokenizer(request):
    return train_tokenizer(TEXTS, Choice.from_config(request.param), 600)


def cut(text, stop):
    """The text before the stop string that is complete first; of those the longest."""
    ends = [(text.find(word) + len(word), text.find(word)) for word in stop if word in text]
    return text[: min(ends)[1]] if ends else text


def whole(decode, before, ids):
    return decode([*before, *ids])[len(decode(before)) :]


def streamed(decode, ids, stop=(), before=(), silent=()):
    stream = Detokenizer(decode, stop, before, skipped_ids=silent)
    pieces = [stream.feed(token, i == len(ids) - 1) for i, token in enumerate(ids)]
    assert stream.feed(ids[0]) == "" if stream.is_stopped and ids else True
    return pieces


words = st.text(alphabet="abé你🙂 \n-s", min_size=1, max_size=4)


@pytest.mark.parametrize("at", [0, 1, 30, 60])
def test_a_word_after_many_tokens_without_a_text_stands_apart_from_the_one_before_them(at):
    def decode(ids):
        return " ".join("ab"[i] for i in ids if i < 2)

    ids = [0, *[9] * 60, 1, *[9] * 5, 0]
    told = streamed(decode, ids[at:], before=ids[:at], silent={9})
    assert "".join(told) == whole(decode, ids[:at], ids[at:])


@pytest.mark.acceptance("C7", "C8")
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_cut_of_a_text_gives_the_text_up_to_the_first_stop(data):
    """Tokens are here any cut of the bytes."""
    text = data.draw(st.text(alphabet="abé你🙂 \n-s", max_size=60))
    stop = data.draw(st.lists(words, max_size=3))
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=len(raw))) | {0, len(raw)})
    parts = [raw[a:b] for a, b in itertools.pairwise(cuts)]

    def decode(ids):
        return b"".join(parts[i] for i in ids).decode(errors="replace")

    stream = Detokenizer(decode, stop)
    shown = ""
    for i in range(len(parts)):
        new = stream.feed(i, i == len(parts) - 1)
        assert "\ufffd" not in new
        shown += new
        assert cut(text, stop).startswith(shown)
        if not stream.is_stopped:  # all is shown but what may yet become a stop string, or half a character
            ready = decode(range(i + 1)).rstrip("\ufffd")
            held = ready[len(shown) :]
            assert (
                i == len(parts) - 1
                or any(word.startswith(held) and word != held for word in stop)
                or not held
            )
    assert shown == cut(text, stop)
    assert stream.is_stopped == any(word in text for word in stop)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_long_texts_of_every_tokenizer_stream_exactly(tokenizer, data):
    def decode(ids):
        return tokenizer.decode([ids])[0]

    text = "".join(
        data.draw(
            st.lists(
                st.sampled_from([*TEXTS[:3], "你", "🙂", " ", "zz", "\n", "ᚠᛇᚻ᛫ᛒᛦᚦ" * 3]),
                min_size=1,
                max_size=30,
            )
        )
    )
    (ids,) = tokenizer.encode([text])
    at = data.draw(st.integers(0, min(len(ids), 40)))
    while at and decode(ids[:at]).endswith("\ufffd"):  # a prompt is text, so it ends with a whole character
        at -= 1
    before, ids = ids[:at], ids[at:]
    stop = data.draw(st.lists(words, max_size=2))
    assert "".join(streamed(decode, ids, stop, before)) == cut(whole(decode, before, ids), stop)


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 260), max_size=80))
def test_bytes_that_are_no_text_stream_as_they_decode_up_to_the_last_whole_character(ids):
    tokenizer = train_tokenizer(["a"], Choice("byte"), 261)

    def decode(ids):
        return tokenizer.decode([ids])[0]

    text = "".join(streamed(decode, ids))
    assert text == decode(ids).rstrip("\ufffd")
    assert decode_complete_chars(tokenizer, [ids]) == [text]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stop_string_leaves_no_part_of_a_character_before_it(data):
    raw = data.draw(st.binary(max_size=40))
    ids = list(raw + b"\n" + data.draw(st.binary(max_size=5)))

    def decode(ids):
        return bytes(ids).decode(errors="replace")

    assert "".join(streamed(decode, ids, ["\n"])) == cut(decode(ids), ["\n"]).rstrip("\ufffd")


def test_at_a_trimmed_end_neither_blanks_nor_parts_of_characters_are_left():
    stream = Detokenizer(lambda ids: bytes(ids).decode(errors="replace"), trim=True)
    said = [stream.feed(token) for token in b" a \xff b \xe4\xbd \xe4"]
    assert "".join(said) + stream.flush() == "a \ufffd b"


def test_a_limit_inside_a_character_drops_its_bytes_and_no_others(tokenizer):
    """Whatever number of tokens is taken from a text, what is streamed of them is the
    beginning of the text.
    """
    text = "a 你好🙂, é"
    (ids,) = tokenizer.encode([text])
    whole = tokenizer.decode([ids])[0]
    for size in range(len(ids) + 1):
        stream = Detokenizer.for_tokenizer(tokenizer, (), ())
        said = "".join(stream.feed(token, i == size - 1) for i, token in enumerate(ids[:size]))
        assert whole.startswith(said)
        assert said == decode_complete_chars(tokenizer, [ids[:size]])[0]


def test_only_the_last_tokens_are_decoded_again():
    sizes = []

    def decode(ids):
        sizes.append(len(ids))
        return "".join(chr(97 + i % 26) for i in ids)

    assert "".join(streamed(decode, list(range(2000)), ["zzz"])) == "".join(
        chr(97 + i % 26) for i in range(2000)
    )
    assert max(sizes) <= 2 * CONTEXT_TOKENS + 1
    assert len(sizes) < 2 * 2000


FAMILIES = {
    "letters": "ab", "carets": "^", "blanks": " ", "lines": "\n", "digits": "123", "accents": "e\u0301",
    "marks": "\u0301",
    "joined": "👩\u200d", "wide": "我们今天", "signs": "!?.,;:'\"-–“”", "specials": "</s><mask>",
    "marker": "<|im_start|>user\n",
    "strange": "\ufffd",
}  # fmt: skip


@pytest.mark.acceptance("E12")
@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("family", [*FAMILIES, "silent", "broken"])
def test_a_token_costs_the_same_however_long_the_text_and_whatever_it_is_made_of(tokenizer, family, trim):
    """Counted are the tokens that are decoded, and the characters that are kept."""
    if family == "silent":
        ids = [tokenizer.unk_id, tokenizer.mask_id] * 500
    elif family == "broken":  # bytes that go on with a character that never began
        names = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
        ids = [i for i, name in enumerate(names) if name in ("<0x80>", "Ģ")] * 1000
    else:
        (ids,) = tokenizer.encode([FAMILIES[family] * 300])
    ids = [*tokenizer.encode(["the dog"])[0], *ids, *tokenizer.encode(["dog"])[0]]
    sizes = []

    def decode(some):
        sizes.append(len(some))
        return tokenizer.decode([some])[0]

    stream, shown = Detokenizer(decode, ["zzz", "  \n x"], trim=trim, skipped_ids=tokenizer.skipped_ids), ""
    for i, token in enumerate(ids):
        shown += stream.feed(token, i == len(ids) - 1)
        assert len(stream.held_text) < 5
    whole = tokenizer.decode([ids])[0]
    if family == "strange":  # bytes of U+FFFD may be told as that many of it
        shown, whole = (re.sub("\ufffd+", "\ufffd", text) for text in (shown, whole))
    assert shown == (whole.strip() if trim else whole)
    assert max(sizes) <= 4 * CONTEXT_TOKENS + 1
    assert sum(sizes) <= 4 * CONTEXT_TOKENS * len(ids)


@pytest.mark.acceptance("E12")
def test_a_prompt_that_says_nothing_is_not_decoded_with_every_token():
    tokenizer, sizes = train_tokenizer(["a"], Choice("byte"), 261), []
    (ids,) = tokenizer.encode(["你好"])

    def decode(some):
        sizes.append(len(some))
        return tokenizer.decode([some])[0]

    stream = Detokenizer(
        decode, context_ids=[*ids, *[tokenizer.mask_id] * 4000], skipped_ids=tokenizer.skipped_ids
    )
    assert "".join(map(stream.feed, ids)) == "你好"
    assert sum(sizes) <= 20 * 2 * len(ids)


@pytest.mark.parametrize("cut", range(6))
def test_a_prompt_in_bytes_is_not_cut_within_a_character(cut):
    """Where bytes are joined run by run, one that begins within a character spoils all of it."""
    tokenizer = train_tokenizer(["a b"], Choice.from_config({"name": "unigram", "byte_fallback": True}), 400)
    before, ids = tokenizer.encode(["🙂" * 9 + "你🙂é"[: cut % 3] + "a" * (cut // 3), "🙂你"])
    stream = Detokenizer(lambda some: tokenizer.decode([some])[0], context_ids=before)
    assert "".join(map(stream.feed, ids[1:])) == "🙂你"  # all but the blank before a first word


@pytest.mark.parametrize("width", [1, 2, 5])
def test_of_two_stop_strings_the_one_that_is_complete_first_counts(width):
    text = "xabcdy"
    parts = [text[i : i + width] for i in range(0, 6, width)]
    for stop, wanted in ((["abcd", "bc"], "xa"), (["bcd", "abcd"], "x"), (["cd", "zz"], "xab")):
        assert (
            "".join(streamed(lambda ids: "".join(parts[i] for i in ids), range(len(parts)), stop)) == wanted
        )


def test_what_is_held_back_comes_at_the_end():
    stream = Detokenizer(lambda ids: bytes(ids).decode(errors="replace"), ["bcd"])
    assert [stream.feed(t) for t in b"abc"] == ["a", "", ""]
    assert stream.flush() == "bc"
    stream = Detokenizer(lambda ids: bytes(ids).decode(errors="replace"))
    assert [stream.feed(t) for t in "é".encode()[:1]] == [""]
    assert stream.flush() == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(UserError, match="a stop string is empty; it would end every text"):
        Detokenizer(str, ["a", ""])
