"""Tests of export/gguf_vocabulary.py."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests.export.conftest import TEXTS

import tokenizers
from polyhead import Choice
from polyhead.core.errors import UserError
from polyhead.export.gguf import _add_metadata
from polyhead.export.gguf_vocabulary import CONTRACTIONS, REST, WORDS, tokenizer_metadata
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers


def pieces(pre: Any = None, prefix: bool = True) -> Tokenizer:
    """A vocabulary of pieces with bytes for what is none, as Llama 2 has it."""
    inner = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    inner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.train_from_iterator(
        TEXTS * 5,
        trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False),
    )
    learned = inner.get_vocab()
    size = len(learned)
    vocab = learned | {f"<0x{byte:02X}>": size + byte for byte in range(256)}
    merges = json.loads(inner.to_str())["model"]["merges"]
    whole = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[tuple(pair) for pair in merges],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    whole.normalizer = inner.normalizer if prefix else normalizers.Replace(" ", "▁")
    if pre is not None:
        whole.pre_tokenizer = pre
    whole.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    whole.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(whole, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"})


def cut_by(*steps: Any, ignore_merges: bool = False) -> Callable[[], Tokenizer]:
    """A vocabulary of bytes whose words are cut in another way."""

    def build() -> Tokenizer:
        inner = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
        inner.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        inner.train_from_iterator(
            [*TEXTS * 5, "1234 12 you're I'll  \n\n x-y"] * 3,
            trainers.BpeTrainer(
                vocab_size=400, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
            ),
        )
        return Tokenizer(inner, {"eos_token": "</s>"})

    return build


BYTES_ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

QWEN_WORDS = Regex(rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{REST}")

QWEN = pre_tokenizers.Split(QWEN_WORDS, "isolated")

LLAMA = pre_tokenizers.Split(Regex(rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{REST}"), "isolated")

VOCABULARIES: dict[str, Callable[[], Tokenizer]] = {
    "bpe": lambda: train_tokenizer([*TEXTS * 5, "a  b <c (d)"], Choice("bpe"), 300),
    "byte": lambda: train_tokenizer(TEXTS, Choice("byte"), 300),
    "char": lambda: train_tokenizer([*TEXTS, "é中文😀ñ\n\t<>"], Choice("char"), 300),
    "pieces": pieces,
    "pieces as of Gemma": lambda: pieces(pre_tokenizers.Split(" ", "merged_with_previous"), prefix=False),
    "pieces without a blank before": lambda: pieces(
        pre_tokenizers.Metaspace(prepend_scheme="never", split=False), prefix=False
    ),
    "gpt2": cut_by(GPT2_WORDS),
    "starcoder": cut_by(pre_tokenizers.Digits(individual_digits=True), GPT2_WORDS),
    "qwen2": cut_by(QWEN, BYTES_ALONE),
    "dbrx": cut_by(LLAMA, BYTES_ALONE),
    "llama3": cut_by(LLAMA, BYTES_ALONE, ignore_merges=True),
}


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        (lambda: train_tokenizer(TEXTS, Choice("wordpiece"), 200), "a vocabulary of the kind WordPiece"),
        (
            lambda: train_tokenizer(TEXTS, Choice("bpe", lowercase=True), 290),
            "it normalizes texts (Lowercase)",
        ),
        (cut_by(pre_tokenizers.Whitespace(), BYTES_ALONE), "it splits words by 'Whitespace'"),
        (
            cut_by(pre_tokenizers.Digits(individual_digits=False), GPT2_WORDS),
            "'Digits together' and 'ByteLevel'",
        ),
        (
            cut_by(pre_tokenizers.Split(QWEN_WORDS, "merged_with_next"), BYTES_ALONE),
            "it splits words by 'Split'",
        ),
        (lambda: pieces(pre_tokenizers.Split("e", "isolated")), "Split with byte fallback"),
        (cut_by(GPT2_WORDS, ignore_merges=True), "ignore_merges with the rule 'gpt-2'"),
    ],
)
def test_vocabularies_that_cut_otherwise_are_refused(tokenizer: Callable[[], Tokenizer], said: str) -> None:
    with pytest.raises(UserError) as told:
        tokenizer_metadata(tokenizer(), 500)
    assert said in str(told.value) and "bpe, byte and char" in str(told.value)


def test_rows_without_a_token_are_told(tmp_path: Path) -> None:
    found = tokenizer_metadata(train_tokenizer(TEXTS, Choice("byte"), 300), 263)
    assert found["tokenizer.ggml.tokens"][261:] == ["[PAD261]", "[PAD262]"]
    assert found["tokenizer.ggml.token_type"][260:] == [gguf.TokenType.NORMAL, *[gguf.TokenType.UNUSED] * 2]


def test_characters_are_merged_from_their_bytes() -> None:
    """Of three bytes the first two, and then the third; what those make is the character as bytes are
    spelled.
    """
    found = tokenizer_metadata(train_tokenizer(["a中"], Choice("char"), 300), 8)
    spelled = "".join(chr({0xE4: 0xE4, 0xB8: 0xB8, 0xAD: 0x143}[byte]) for byte in "中".encode())
    assert found["tokenizer.ggml.merges"] == [f"{spelled[0]} {spelled[1]}", f"{spelled[:2]} {spelled[2]}"]
    assert {"a", spelled} <= set(found["tokenizer.ggml.tokens"])


def test_pieces_that_are_merged_first_score_highest() -> None:
    tokenizer = pieces()
    found = tokenizer_metadata(tokenizer, tokenizer.vocab_size)
    scores = dict(zip(found["tokenizer.ggml.tokens"], found["tokenizer.ggml.scores"], strict=True))
    merged = ["".join(pair) for pair in json.loads(tokenizer.tokenizer_json)["model"]["merges"]]
    assert [scores[piece] for piece in merged] == [-float(i) for i in range(len(merged))]
    assert min(scores.values()) == scores["<0x41>"] == -len(merged)


def test_tokens_that_were_added_to_pieces_have_scores_too() -> None:
    tokenizer = pieces()
    tokenizer._inner.add_tokens([tokenizers.AddedToken("<|user|>", normalized=False)])
    found = tokenizer_metadata(tokenizer, tokenizer.vocab_size + 2)
    assert found["tokenizer.ggml.tokens"][-3:-1] == ["<|user|>", f"[PAD{tokenizer.vocab_size}]"]
    lengths = {len(found[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type", "scores")}
    assert lengths == {tokenizer.vocab_size + 2}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_cuts_texts_alike(name: str, tmp_path: Path) -> None:
    llama = pytest.importorskip("llama_cpp")
    tokenizer = VOCABULARIES[name]()
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"context_length": 8, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8,
             "attention.head_count": 1, "attention.layer_norm_rms_epsilon": 1e-5}  # fmt: skip
    _add_metadata(writer, {f"llama.{key}": value for key, value in sizes.items()})
    _add_metadata(writer, tokenizer_metadata(tokenizer, tokenizer.vocab_size))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model = llama.Llama(str(path), vocab_only=True, verbose=False)
    draw = random.Random(1)
    alphabet = "abckingsthedo  \n\t.,!?'\"()<>-0123 é中文ñ😀\r"
    texts = ["".join(draw.choice(alphabet) for _ in range(draw.randint(1, 40))) for _ in range(500)]
    for text in [*texts, *TEXTS, "a <b  <c", "you're I'LL", "12345 6", "  two", "tail  ", "\n\n\nx", "</s>"]:
        wanted = tokenizer.encode([text])[0]
        if name == "char":  # what is unknown is left out there
            wanted = [i for i in wanted if i != tokenizer.unk_id]
        assert model.tokenize(text.encode(), add_bos=False, special=False) == wanted, repr(text)
