"""Text offsets and names of tokens, against bytes that are classified one by one."""

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
# starts of characters: of 64 that differ in their last byte all have the same
SIZES = ((0x80, 0x800, 2), (0x800, 0xD800, 3), (0xE000, 0x10000, 3), (0x10000, 0x110000, 4))
CHARACTERS = [(chr(i).encode(), size) for a, b, size in SIZES for i in range(a, b, 64)]
CHARACTER_STARTS = {data[:k] for data, size in CHARACTERS for k in range(1, size)}
ODD_BYTES = (0xE7, 0x8A, 0xAC, 0xF0, 0x9F, 0xC3, 0xED, 0xA0, 0xFF, 97)


def is_character(data):
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def character_numbers(data):
    """Of each byte the number of its character; an incomplete start is one, other bytes are one each."""
    numbers = []
    number = start = 0
    while start < len(data):
        size = next((k for k in range(1, 5) if is_character(data[start : start + k])), 0)
        size = size or next((k for k in (3, 2, 1) if data[start : start + k] in CHARACTER_STARTS), 1)
        numbers += [number] * len(data[start : start + size])
        number, start = number + 1, start + size
    return numbers


def reference_offsets(tokens, n_prompt=0):
    """The offsets of tokens after a prompt, which counts as a text of its own."""
    prompt = b"".join(tokens[:n_prompt])
    numbers, length = character_numbers(b"".join(tokens)), len(prompt.decode(errors="replace"))
    starts = [len(b"".join(tokens[:i])) for i in range(n_prompt, len(tokens))]
    return [max(0, numbers[start] - length) for start in starts]


@pytest.fixture
def token_bytes(client):
    return client.run.tokenizer.token_bytes


@pytest.fixture
def byte_tokens(token_bytes):
    """The token of each byte."""
    return {bytes(data)[0]: token for token, data in token_bytes.items() if len(data) == 1}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xe7\x8aab", [0, 0, 1, 2]),  # broken by what follows
        (b"\xe7\xe7\x8a\xac.", [0, 1, 1, 1, 2]),  # by another character
        (b"\xe7\x8a\xac\xac.", [0, 0, 0, 1, 2]),  # one byte too many
        (b"\xf0\x9f\x98\xe7.", [0, 0, 0, 1, 2]),
        (b"a\xff\xffb\xe7", [0, 1, 2, 3, 4]),
    ],
    ids=range(5),
)
def test_broken_character_has_an_offset_of_its_own(client, byte_tokens, data, expected):
    ids = [byte_tokens[byte] for byte in data]
    assert token_offsets(client.run.tokenizer).next_offsets(ids) == expected
    assert reference_offsets([bytes([byte]) for byte in data]) == expected
    body = {"prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = client.ask(PATH, body).json()["choices"]
    assert choice["text"] == data.decode(errors="replace")
    assert choice["logprobs"]["text_offset"] == expected


def test_offsets_of_random_tokens_in_any_pieces(client, token_bytes, byte_tokens):
    rng, tokenizer = random.Random(1), client.run.tokenizer
    odd = [byte_tokens[byte] for byte in ODD_BYTES]
    tokens = [token for token, data in token_bytes.items() if data]
    for _ in range(300):
        ids = [rng.choice(odd if rng.random() < 0.8 else tokens) for _ in range(14)]
        data, n_prompt = [bytes(token_bytes[token]) for token in ids], rng.randrange(6)
        length = len(tokenizer.decode([ids[:n_prompt]])[0])
        for start in (0, length):  # without an echo, and after it
            offsets, result = token_offsets(tokenizer, ids[:n_prompt], start), []
            while len(result) < 14 - n_prompt:
                rest = ids[n_prompt + len(result) :]
                result += offsets.next_offsets(rest[: rng.randrange(1, 4)])
            expected = reference_offsets(data)[n_prompt:] if start else reference_offsets(data, n_prompt)
            assert result == expected
    a, b, silent = byte_tokens[97], byte_tokens[98], tokenizer.eos_id  # without text: the next offset
    assert token_offsets(tokenizer).next_offsets([a, silent, b, silent, silent]) == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("seed", range(4))
def test_offsets_of_sampled_tokens(client, token_bytes, byte_tokens, seed):
    """After a prompt that ends within a character."""
    prompt = [byte_tokens[97], byte_tokens[0xE7], byte_tokens[0x8A]][: 3 - seed % 2]
    body = {"prompt": prompt, "seed": seed, "temperature": 2, "max_tokens": 20, "logprobs": 0}
    output = client.run.engine().submit(prompt, seed=seed, temperature=2.0, max_new_tokens=20)
    output.collect_texts()
    ids = [token for token in output.tokens[0] if token_bytes[token]]
    data = [bytes(token_bytes[token]) for token in prompt + ids]
    assert any("\ufffd" in piece.decode(errors="replace") for piece in data[3:]), "no character is broken"
    for echo in (False, True):
        expected = reference_offsets(data) if echo else reference_offsets(data, len(prompt))
        (choice,) = client.ask(PATH, {**body, "echo": echo}).json()["choices"]
        assert choice["logprobs"]["text_offset"][: len(expected)] == expected
        events = client.stream(PATH, {**body, "echo": echo})
        parts = [event["choices"][0]["logprobs"]["text_offset"] for event in events]
        assert [offset for part in parts for offset in part] == choice["logprobs"]["text_offset"]


def test_offsets_with_byte_fallback():
    """Every byte of a broken character is a character of its own; a start may become one."""
    vocab = {"</s>": 0, "a": 1, **{f"<0x{i:02X}>": i + 2 for i in range(256)}}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(inner, {"eos_token": "</s>"})
    assert tokenizer.token_bytes is None
    for data, expected in (
        (b"a\xe7\x8a\xacaa", [0, 1, 1, 1, 2, 3]),
        (b"a\xe7\x8aaa", [0, 1, 1, 3, 4]),  # two replacement characters
        (b"\xe7a\xe7\x8a\xaca", [0, 1, 2, 2, 2, 3]),
    ):
        ids = [1 if byte == 97 else byte + 2 for byte in data]
        assert token_offsets(tokenizer).next_offsets(ids) == expected
        (text,) = tokenizer.decode([ids])
        assert [text[offset] == "a" for offset in expected] == [byte == 97 for byte in data]


def test_tokens_of_sentencepiece_are_named_by_their_text():
    """As Llama 2 has them: decoding drops a first blank, and bytes replace unknown characters."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "a", "b", "\u2581a", "\u2581b"]
    vocab, merges = {word: i for i, word in enumerate(words)}, [("\u2581", "a"), ("\u2581", "b")]
    inner = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>"))
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    inner.normalizer = normalizers.Sequence(steps)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps.append(decoders.Strip(" ", 1, 0))
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(words[:3])
    tokenizer = Tokenizer(inner, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 48}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=1)
    run = Run(model, tokenizer, GenerationConfig())
    tokens = [words.index(word) for word in ("\u2581a", "a", "\u2581b", "<0xC3>", "<0xA9>", "\u2581")]
    names = [" a", "a", " b", "bytes:\\xc3", "bytes:\\xa9", " "]
    data = [[0x20, 0x61], [0x61], [0x20, 0x62], [0xC3], [0xA9], [0x20]]
    logprobs = TokenLogprobs(tokens, [-1.0] * 6, [[(t, -1.0), (words.index("a"), -2.0)] for t in tokens])
    assert format_completion_logprobs(run, logprobs, 1, range(6))["tokens"] == names
    content = format_chat_logprobs(run, logprobs)["content"]
    assert [(entry["token"], entry["bytes"]) for entry in content] == [*zip(names, data, strict=True)]
    # of two tokens with the same text the sampled one is listed
    pair = TokenLogprobs([words.index("a")], [-1.0], [[(words.index("<0x61>"), -0.5)]])
    assert format_completion_logprobs(run, pair, 1, [0])["top_logprobs"] == [{"a": -1.0}]
