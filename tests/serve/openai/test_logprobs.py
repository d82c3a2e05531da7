"""Where tokens stand in a text, against bytes that are told apart one by one, broken
characters among them.
"""

from __future__ import annotations

import random

import pytest

import tokenizers
from polyhead import ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.generation.text_output import TokenLogprobs
from polyhead.run.run import Run
from polyhead.serve.openai.logprobs import format_chat_logprobs, format_completion_logprobs, token_offsets
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import decoders, models, normalizers

PATH = "/v1/completions"
UNFIT = "\ufffd"
BEGINS = {  # of characters that are not whole: every one of 64 that differ in their last byte begins alike
    chr(code).encode()[:k]
    for first, last, size in ((0x80, 0x800, 2), (0x800, 0xD800, 3), (0xE000, 0x10000, 3), (0x10000, 0x110000,
        4))
    for code in range(first, last, 64)
    for k in range(1, size)
}  # fmt: skip


def numbers(data: bytes) -> list[int]:
    """Of each byte the number of its character; bytes that begin one and do not end it are one, others one
    each.
    """
    found: list[int] = []
    number = at = 0
    while at < len(data):
        size = next((k for k in range(1, 5) if whole(data[at : at + k])), 0)
        size = size or next((k for k in (3, 2, 1) if data[at : at + k] in BEGINS), 1)
        found += [number] * len(data[at : at + size])
        number, at = number + 1, at + size
    return found


def whole(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def naive(said: list[bytes], begun: int = 0) -> list[int]:
    """The places of tokens from one of them on, those before it counted as a text of its own; silent ones
    not asked.
    """
    before = b"".join(said[:begun])
    all_, found = numbers(b"".join(said)), []
    known = len(before.decode(errors="replace"))
    at = len(before)
    for one in said[begun:]:
        found.append(max(0, all_[at] - known))
        at += len(one)
    return found


def test_what_is_compared_with_counts_as_decoding_does():
    rng = random.Random(0)
    for _ in range(300):
        data = bytes(rng.choice([97, 0xE7, 0x8A, 0xAC, 0xF0, 0x9F, 0x98, 0xC3, 0xED, 0xA0]) for _ in range(9))
        assert max(numbers(data)) + 1 == len(data.decode(errors="replace"))


@pytest.fixture
def spoken(speaker):
    return speaker.run.tokenizer.token_bytes


@pytest.fixture
def byte(spoken):
    """The token of each byte."""
    return {bytes(data)[0]: token for token, data in spoken.items() if len(data) == 1}


CASES = [
    (b"\xe7\x8aab", [0, 0, 1, 2]),  # broken by what follows
    (b"\xe7\xe7\x8a\xac.", [0, 1, 1, 1, 2]),  # by another character
    (b"\xe7\x8a\xac\xac.", [0, 0, 0, 1, 2]),  # one byte too many
    (b"\xf0\x9f\x98\xe7.", [0, 0, 0, 1, 2]),
    (b"a\xff\xffb\xe7", [0, 1, 2, 3, 4]),
]


@pytest.mark.parametrize(("data", "wanted"), CASES, ids=[str(data) for data, _ in CASES])
def test_a_broken_character_takes_a_place_of_its_own(speaker, byte, data, wanted):
    ids = [byte[one] for one in data]
    assert (
        token_offsets(speaker.run.tokenizer).next_offsets(ids)
        == wanted
        == naive([bytes([one]) for one in data])
    )
    body = {"prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = speaker.ask(PATH, body).json()["choices"]
    assert choice["text"] == data.decode(errors="replace")
    assert choice["logprobs"]["text_offset"] == wanted


def test_any_tokens_however_they_are_handed_over(speaker, spoken, byte):
    rng, tokenizer = random.Random(1), speaker.run.tokenizer
    odd = [byte[one] for one in (0xE7, 0x8A, 0xAC, 0xF0, 0x9F, 0xC3, 0xED, 0xA0, 0xFF, 97)]
    every = [token for token, data in spoken.items() if data]
    for _ in range(300):
        ids = [rng.choice(odd if rng.random() < 0.8 else every) for _ in range(14)]
        said = [bytes(spoken[token]) for token in ids]
        begun = rng.randrange(6)
        text = len(tokenizer.decode([ids[:begun]])[0])
        for at in (0, text):  # without an echo, and behind it
            there, found = token_offsets(tokenizer, ids[:begun], at), []
            while len(found) < 14 - begun:
                rest = ids[begun + len(found) :]
                found += there.next_offsets(rest[: rng.randrange(1, 4)])
            whole = naive(said)[begun:]
            assert found == (whole if at else naive(said, begun))


def test_tokens_that_say_nothing_stand_before_what_comes(speaker, byte):
    silent, tokenizer = speaker.run.tokenizer.eos_id, speaker.run.tokenizer
    assert token_offsets(tokenizer).next_offsets([byte[97], silent, byte[98], silent, silent]) == [
        0,
        1,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_said_stands_where_its_text_is(speaker, spoken, byte, seed):
    """Words that are said at random, behind a prompt that ends within a character."""
    prompt = [byte[97], byte[0xE7], byte[0x8A]][: 3 - seed % 2]
    body = {"prompt": prompt, "seed": seed, "temperature": 2, "max_tokens": 20, "logprobs": 0}
    stream = speaker.run.engine().submit(prompt, seed=seed, temperature=2.0, max_new_tokens=20)
    stream.collect_texts()
    ids = [token for token in stream.tokens[0] if spoken[token]]
    said = [bytes(spoken[token]) for token in prompt + ids]
    assert any(UNFIT in one.decode(errors="replace") for one in said[3:]), "nothing is broken"
    for echo in (False, True):
        wanted = naive(said) if echo else naive(said, len(prompt))
        (choice,) = speaker.ask(PATH, {**body, "echo": echo}).json()["choices"]
        assert choice["logprobs"]["text_offset"][: len(wanted)] == wanted
        parts = [event["choices"][0] for event in speaker.events(PATH, {**body, "echo": echo})]
        told = [at for one in parts for at in one["logprobs"]["text_offset"]]
        assert told == choice["logprobs"]["text_offset"]


def test_bytes_in_place_of_what_a_vocabulary_lacks():
    """There every byte of what is no character is one of its own; where a character has begun is told, for
    more may come.
    """
    vocab = {"</s>": 0, "a": 1, **{f"<0x{i:02X}>": i + 2 for i in range(256)}}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(inner, {"eos_token": "</s>"})
    assert tokenizer.token_bytes is None
    for data, wanted in (
        (b"a\xe7\x8a\xacaa", [0, 1, 1, 1, 2, 3]),
        (b"a\xe7\x8aaa", [0, 1, 1, 3, 4]),  # two marks stand for what is broken
        (b"\xe7a\xe7\x8a\xaca", [0, 1, 2, 2, 2, 3]),
    ):
        ids = [1 if one == 97 else one + 2 for one in data]
        assert token_offsets(tokenizer).next_offsets(ids) == wanted
        (text,) = tokenizer.decode([ids])
        for at, one in zip(wanted, data, strict=True):
            assert (text[at] == "a") == (one == 97)


def test_tokens_of_sentencepiece_are_what_they_add_to_a_text() -> None:
    """As Llama 2 has them: a first blank is lost in decoding, bytes stand for characters that the vocabulary
    has not.
    """
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "a",
        "b",
        "\u2581a",
        "\u2581b",
    ]
    inner = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [("\u2581", "a"),
        ("\u2581", "b")], byte_fallback=True,
                      unk_token="<unk>"))  # fmt: skip
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokens = Tokenizer(inner, roles)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    model = build(ModelConfig(kind="decoder", vocab_size=tokens.vocab_size, **sizes), seed=1)
    said = [words.index(word) for word in ("\u2581a", "a", "\u2581b", "<0xC3>", "<0xA9>", "\u2581")]
    names = [" a", "a", " b", "bytes:\\xc3", "bytes:\\xa9", " "]
    held = [list(name.encode()) for name in names[:3]] + [[0xC3], [0xA9], [0x20]]
    run = Run(model, tokens, GenerationConfig())
    likely = TokenLogprobs(said, [-1.0] * 6, [[(token, -1.0), (words.index("a"), -2.0)] for token in said])
    assert format_completion_logprobs(run, likely, 1, range(6))["tokens"] == names
    for (name, own), one in zip(
        zip(names, held, strict=True), format_chat_logprobs(run, likely)["content"], strict=True
    ):
        assert (one["token"], one["bytes"]) == (name, own)
    # of two of one text the one that was said is told
    pair = TokenLogprobs([words.index("a")], [-1.0], [[(words.index("<0x61>"), -0.5)]])
    assert format_completion_logprobs(run, pair, 1, [0])["top_logprobs"] == [{"a": -1.0}]
