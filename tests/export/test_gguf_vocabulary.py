import json
import random

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

SPECIAL_TOKENS = ["<unk>", "<s>", "</s>"]


def byte_fallback(pre_tokenizer=None, has_prefix=True):
    options = {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    trained_model = tokenizers.Tokenizer(models.BPE(**options))
    trained_model.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    replace = normalizers.Replace(" ", "▁")
    trained_model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=SPECIAL_TOKENS, show_progress=False)
    trained_model.train_from_iterator(TEXTS * 5, trainer)
    vocab = trained_model.get_vocab()
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    merges = [tuple(pair) for pair in json.loads(trained_model.to_str())["model"]["merges"]]
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    inner.normalizer = trained_model.normalizer if has_prefix else replace
    if pre_tokenizer is not None:
        inner.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(SPECIAL_TOKENS)
    return Tokenizer(inner, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"})


def byte_level(*steps, ignore_merges=False):

    def build():
        inner = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
        inner.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        options = {"special_tokens": ["</s>"], "initial_alphabet": alphabet, "show_progress": False}
        texts = [*TEXTS * 5, "1234 12 you're I'll  \n\n x-y"] * 3
        inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, **options))
        return Tokenizer(inner, {"eos_token": "</s>"})

    return build


def trained_on(texts, size, **options):
    return lambda: train_tokenizer(texts, Choice.from_config(options), size)


BYTES_ONLY = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
QWEN_WORDS = Regex(rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{REST}")
QWEN = pre_tokenizers.Split(QWEN_WORDS, "isolated")
LLAMA3 = pre_tokenizers.Split(Regex(rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{REST}"), "isolated")
DIGITS, DIGIT_GROUPS = (pre_tokenizers.Digits(individual_digits=on) for on in (True, False))
NO_PREFIX = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
VOCABULARIES = {
    "bpe": trained_on([*TEXTS * 5, "a  b <c (d)"], 300, name="bpe"),
    "byte": trained_on(TEXTS, 300, name="byte"),
    "char": trained_on([*TEXTS, "é中文😀ñ\n\t<>"], 300, name="char"),
    "llama2": byte_fallback,
    "gemma": lambda: byte_fallback(pre_tokenizers.Split(" ", "merged_with_previous"), has_prefix=False),
    "llama2 without prefix": lambda: byte_fallback(NO_PREFIX, has_prefix=False),
    "gpt2": byte_level(GPT2_WORDS),
    "starcoder": byte_level(DIGITS, GPT2_WORDS),
    "qwen2": byte_level(QWEN, BYTES_ONLY),
    "dbrx": byte_level(LLAMA3, BYTES_ONLY),
    "llama3": byte_level(LLAMA3, BYTES_ONLY, ignore_merges=True),
}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (trained_on(TEXTS, 200, name="wordpiece"), "a vocabulary of the kind WordPiece"),
        (trained_on(TEXTS, 290, name="bpe", lowercase=True), "it normalizes texts (Lowercase)"),
        (byte_level(pre_tokenizers.Whitespace(), BYTES_ONLY), "it splits words by 'Whitespace'"),
        (byte_level(DIGIT_GROUPS, GPT2_WORDS), "'Digits together' and 'ByteLevel'"),
        (
            byte_level(pre_tokenizers.Split(QWEN_WORDS, "merged_with_next"), BYTES_ONLY),
            "it splits words by 'Split'",
        ),
        (lambda: byte_fallback(pre_tokenizers.Split("e", "isolated")), "Split with byte fallback"),
        (byte_level(GPT2_WORDS, ignore_merges=True), "ignore_merges with the rule 'gpt-2'"),
    ],
)
def test_unsupported_vocabulary_is_refused(build, message):
    with pytest.raises(UserError) as error:
        tokenizer_metadata(build(), 500)
    assert message in str(error.value) and "bpe, byte and char" in str(error.value)


def test_padding_rows_and_merged_bytes():
    metadata = tokenizer_metadata(train_tokenizer(TEXTS, Choice("byte"), 300), 263)
    assert metadata["tokenizer.ggml.tokens"][261:] == ["[PAD261]", "[PAD262]"]
    types = [gguf.TokenType.NORMAL, *[gguf.TokenType.UNUSED] * 2]
    assert metadata["tokenizer.ggml.token_type"][260:] == types
    metadata = tokenizer_metadata(train_tokenizer(["a中"], Choice("char"), 300), 8)
    spelling = "".join(chr({0xE4: 0xE4, 0xB8: 0xB8, 0xAD: 0x143}[byte]) for byte in "中".encode())
    merges = [f"{spelling[0]} {spelling[1]}", f"{spelling[:2]} {spelling[2]}"]
    assert metadata["tokenizer.ggml.merges"] == merges
    assert {"a", spelling} <= set(metadata["tokenizer.ggml.tokens"])


def test_scores_of_merges_and_added_tokens():
    tokenizer = byte_fallback()
    metadata = tokenizer_metadata(tokenizer, tokenizer.vocab_size)
    scores = dict(zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], strict=True))
    pieces = ["".join(pair) for pair in json.loads(tokenizer.tokenizer_json)["model"]["merges"]]
    assert [scores[piece] for piece in pieces] == [-float(i) for i in range(len(pieces))]
    assert min(scores.values()) == scores["<0x41>"] == -len(pieces)
    tokenizer._inner.add_tokens([tokenizers.AddedToken("<|user|>", normalized=False)])
    del tokenizer.vocab_size  # which is stored
    metadata = tokenizer_metadata(tokenizer, tokenizer.vocab_size + 2)
    assert metadata["tokenizer.ggml.tokens"][-3:-1] == ["<|user|>", f"[PAD{tokenizer.vocab_size}]"]
    lengths = {len(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type", "scores")}
    assert lengths == {tokenizer.vocab_size + 2}


EDGE_CASES = ["a <b  <c", "you're I'LL", "12345 6", "  two", "tail  ", "\n\n\nx", "</s>"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_llama_cpp_encodes_same_ids(name, tmp_path):
    llama = pytest.importorskip("llama_cpp")
    tokenizer, path = VOCABULARIES[name](), tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"context_length": 8, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8}
    sizes |= {"attention.head_count": 1, "attention.layer_norm_rms_epsilon": 1e-5}
    _add_metadata(writer, {f"llama.{key}": value for key, value in sizes.items()})
    _add_metadata(writer, tokenizer_metadata(tokenizer, tokenizer.vocab_size))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model, generator = llama.Llama(str(path), vocab_only=True, verbose=False), random.Random(1)
    alphabet = "abckingsthedo  \n\t.,!?'\"()<>-0123 é中文ñ😀\r"
    texts = ["".join(generator.choices(alphabet, k=generator.randint(1, 40))) for _ in range(500)]
    for text in [*texts, *TEXTS, *EDGE_CASES]:
        expected = tokenizer.encode([text])[0]
        if name == "char":  # llama.cpp leaves unknown characters out
            expected = [i for i in expected if i != tokenizer.unk_id]
        assert model.tokenize(text.encode(), add_bos=False, special=False) == expected, repr(text)
