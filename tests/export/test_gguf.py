"""Files of GGUF against the runs they were made from: by transformers' reader, by gguf's own, and by llama.cpp itself.

llama.cpp is built from its sources (pip install llama-cpp-python); what asks it is skipped where it is not installed.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from tests.export.conftest import TEXTS, exported, made
from tests.hf.conftest import make
from tests.hf.families.test_families import CASES
from torch import Tensor

import polyhead as ph
import tokenizers
from polyhead import Choice
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.export.gguf import _add_metadata, check_gguf, write_gguf
from polyhead.export.gguf_archs import ARCHS
from polyhead.export.gguf_vocabulary import CONTRACTIONS, REST, WORDS, tokenizer_metadata
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

IDS = [1, 5, 9, 200, 17, 33, 70, 71, 8, 9, 250, 3]
LIKE: dict[str, Any] = {
    "kind": "decoder", "position": "rope", "norm": "rmsnorm", "norm_first": True, "feed_forward": "swiglu",
    "scale_embedding": False, "attention": {"name": "softmax", "bias": False}, "n_layers": 2,
}  # fmt: skip
NANO: dict[str, Any] = {
    "kind": "decoder", "position": "learned", "norm": {"name": "layernorm", "bias": False}, "norm_first": True,
    "attention": {"name": "softmax", "bias": False}, "feed_forward": {"name": "gelu", "bias": False, "tanh": True},
    "scale_embedding": False, "n_layers": 2,
}  # fmt: skip
GEMMA: dict[str, Any] = LIKE | {
    "norm": {"name": "rmsnorm", "zero_centered": True}, "feed_forward": {"name": "geglu", "tanh": True}, "sandwich_norm": True,
    "scale_embedding": True, "n_layers": 3,
}  # fmt: skip
BARE = {"name": "softmax", "bias": False}
WINDOW = {"name": "softmax", "bias": False, "window": 4}
# our parts -> the architecture that runs them
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "as a recipe for plain text has it": ("llama", LIKE),
    "grouped, untied": ("llama", LIKE | {"n_kv_heads": 2, "tie_embeddings": "none", "head_dim": 10}),
    "all biases": ("llama", LIKE | {"attention": "softmax", "feed_forward": {"name": "swiglu", "bias": True}}),
    "scaled by numbers": ("llama", LIKE | {"head_dim": 8, "position": {
        "name": "rope", "scaling": "llama3", "theta": 100.0, "factor": 8.0, "original_len": 16}}),
    "scaled by yarn": ("llama", LIKE | {"head_dim": 8, "position": {
        "name": "rope", "scaling": "yarn", "theta": 100.0, "factor": 4.0, "original_len": 16}}),
    "embeddings scaled": ("granite", LIKE | {"scale_embedding": True, "scale_output": 3.0, "scale_residual": 0.5}),
    "nanoGPT": ("gpt2", NANO),
    "some biases": ("gpt2", NANO | {"attention": {"name": "softmax", "bias": "qkv"}, "norm": "layernorm"}),
    "normalised": ("qwen3", LIKE | {"attention": {"name": "softmax", "bias": False, "qk_norm": True}}),
    "windows in turn": ("gemma2", GEMMA | {"attention": {**BARE, "softcap": 2.0}, "logit_softcap": 3.0, "pattern": [
        {"attention": {**WINDOW, "softcap": 2.0}}, {}]}),
    "windows, and two ropes": ("gemma3", GEMMA | {"attention": {**BARE, "qk_norm": "zero_centered"}, "pattern": [
        {"attention": {**WINDOW, "qk_norm": "zero_centered"}, "position": {"name": "rope", "theta": 50.0}}, {}]}),
    "a part turns": ("phi3", LIKE | {"position": {"name": "rope", "fraction": 0.5}, "head_dim": None, "d_model": 32}),
    "one head of keys": ("starcoder", NANO | {"n_kv_heads": 1}),
    "penalties of distance, no biases": ("mpt", NANO | {"position": "alibi", "n_heads": 6, "d_ff": 96, "feed_forward": {"name": "gelu", "bias": False}}),
    "side by side": ("gptneox", NANO | {"block": "parallel", "position": "rope", "tie_embeddings": "none"}),
}  # fmt: skip
# cases of the families' own tests that transformers' reader knows whole
READ = [("llama", 0), ("mistral", 0), ("qwen2", 0), ("qwen2", 1), ("bloom", 0), ("bloom", 1), ("stablelm", 0),
        ("starcoder2", 0)]  # fmt: skip
# those that llama.cpp has; the others have windows, activations, biases or scales that it has not
NUMBERS = {
    "llama": (0, 1, 3, 4), "gpt2": (0, 1), "mistral": (0,), "qwen2": (0, 1), "qwen3": (0, 2), "gemma": (0, 2),
    "gemma2": (0,), "gemma3_text": (0,), "phi3": (0,), "gpt_neox": (0, 1, 2, 3), "bloom": (0, 1, 2), "gpt_bigcode": (0, 1), "mpt": (0, 2), "starcoder2": (0, 2),
    "stablelm": (0, 1), "olmo2": (0,), "granite": (0, 1, 3), "smollm3": (0,), "arcee": (0,), "ernie4_5": (0,), "cohere": (0,),
}  # fmt: skip
RUN = [(family, number) for family, numbers in NUMBERS.items() for number in numbers]


def published(family: str, number: int, place: Path) -> Run:
    """A small random model of the reference implementation, opened here."""
    case = CASES[family][number]
    make(place / "theirs", case.config, **case.sizes)
    return ph.load(place / "theirs")


def language_model(**parts: Any) -> Run:
    run = made(**{**LIKE, **parts})
    run.model.eval()
    return run


@torch.no_grad()
def logits(run: Run, ids: list[int] = IDS) -> Tensor:
    return run.model.eval()(torch.tensor([ids]))[0]


def tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file as it is read there: rows and columns in our order."""
    return {
        one.name: torch.from_numpy(np.array(dequantize(one.data, one.tensor_type)))
        for one in gguf.GGUFReader(path / "model.gguf").tensors
    }


def settings(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path / "model.gguf").fields.items()}


@pytest.mark.parametrize(("family", "number"), READ)
def test_transformers_reads_the_same_model(family: str, number: int, tmp_path: Path) -> None:
    """The reference implementation's reader of GGUF, and its forward."""
    from transformers import AutoModelForCausalLM

    run = published(family, number, tmp_path)
    write_gguf(run, tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    with torch.no_grad():
        torch.testing.assert_close(read(torch.tensor([IDS])).logits[0], logits(run), rtol=1e-5, atol=1e-5)


def test_transformers_reads_the_same_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    run = language_model()
    write_gguf(run, tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in [*TEXTS, "naïve 中文 \n\n  x"]:
        assert read(text, add_special_tokens=False).input_ids == run.tokenizer.encode([text])[0]


@pytest.mark.parametrize("name", PARTS)
def test_each_part_has_its_architecture(name: str, tmp_path: Path) -> None:
    arch, parts = PARTS[name]
    write_gguf(language_model(**parts), tmp_path)
    assert settings(tmp_path)["general.architecture"] == arch


@pytest.mark.parametrize("family", ARCHS)
def test_of_published_families_the_right_models_are_taken(family: str, tmp_path: Path) -> None:
    taken = []
    for number in range(len(CASES[family])):
        with contextlib.suppress(UserError):
            check_gguf(published(family, number, tmp_path / str(number)), "fp32")
            taken.append(number)
    assert tuple(taken) == NUMBERS[family]


def test_missing_biases_are_noughts(tmp_path: Path) -> None:
    write_gguf(language_model(**NANO), tmp_path)
    found = tensors(tmp_path)
    assert {"blk.1.attn_qkv.bias", "blk.1.attn_output.bias", "blk.1.attn_norm.bias", "blk.1.ffn_up.bias",
            "blk.1.ffn_down.bias", "blk.1.ffn_norm.bias", "output_norm.bias"} <= found.keys()  # fmt: skip
    assert not any(x.any() for name, x in found.items() if name.endswith(".bias"))
    assert found["blk.1.attn_qkv.bias"].shape == (3 * 24,)


def test_norms_around_one_are_written_as_they_count(tmp_path: Path) -> None:
    run = language_model(**PARTS["windows, and two ropes"][1])
    write_gguf(run, tmp_path)
    ours = run.model.state_dict()
    for theirs, name in {
        "blk.0.attn_norm": "stack.layers.0.attn_residual.norm",
        "blk.2.attn_q_norm": "stack.layers.2.attn.q_norm",
        "blk.1.post_ffw_norm": "stack.layers.1.ffn_residual.sandwich_norm",
        "output_norm": "stack.final_norm",
    }.items():
        torch.testing.assert_close(tensors(tmp_path)[f"{theirs}.weight"], ours[f"{name}.weight"] + 1)
    said = settings(tmp_path)
    assert said["gemma3.attention.sliding_window_pattern"] == [True, False, True]
    assert (said["gemma3.rope.freq_base"], said["gemma3.rope.freq_base_swa"]) == (10000.0, 50.0)


@pytest.mark.parametrize(
    ("dtype", "close"), [("fp16", 2**-11), ("bf16", 2**-8), ("int8", 0.006), ("int4", 0.13)]
)
def test_rounded_weights_are_near(dtype: str, close: float, tmp_path: Path) -> None:
    run = language_model(d_model=64, d_ff=96, n_heads=2)
    write_gguf(run, tmp_path, dtype)
    ours = run.model.state_dict()["stack.layers.1.ffn.down_proj.weight"]
    found = tensors(tmp_path)["blk.1.ffn_down.weight"]
    assert 0 < (found - ours).abs().max() <= close * ours.abs().max()
    norm = run.model.state_dict()["stack.final_norm.weight"]
    torch.testing.assert_close(tensors(tmp_path)["output_norm.weight"], norm, rtol=0, atol=0)


def test_rows_that_are_no_whole_blocks_are_halved(tmp_path: Path) -> None:
    write_gguf(language_model(d_ff=40, d_model=64, n_heads=2), tmp_path, "int8")
    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")


@pytest.mark.parametrize("tied", ["none", "all"])
def test_with_four_bits_the_tokens_have_eight(tied: str, tmp_path: Path) -> None:
    write_gguf(language_model(d_ff=40, d_model=64, n_heads=2, tie_embeddings=tied), tmp_path, "int4")
    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    ends = {name: kind for name, kind in kinds.items() if name in ("token_embd.weight", "output.weight")}
    assert ends == dict.fromkeys(
        ["token_embd.weight", *(["output.weight"] if tied == "none" else [])], "Q8_0"
    )
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q4_0")
    assert settings(tmp_path)["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_0


def test_what_stands_around_a_text(tmp_path: Path) -> None:
    """Lines begin with the mark of their end, whole files with nothing."""
    run = language_model()
    for documents, begin in (("line", True), ("file", False)):
        run.recipe = Recipe.model_validate(
            {
                "task": "language-model",
                "data": {"train": "a.txt", "valid": "b.txt", "documents": documents},
                "train": {"steps": 1},
            }
        )
        (tmp_path / documents).mkdir()
        write_gguf(run, tmp_path / documents)
        said = settings(tmp_path / documents)
        assert said["tokenizer.ggml.add_bos_token"] is begin
        assert said["tokenizer.ggml.eos_token_id"] == run.tokenizer.eos_id
        if begin:
            assert said["tokenizer.ggml.bos_token_id"] == run.tokenizer.eos_id


def test_a_chat_model_says_how_it_converses_and_decodes(tmp_path: Path) -> None:
    run = language_model()
    run.generation = run.generation.model_copy(
        update={"chat": Choice("zephyr"), "temperature": 0.5, "top_k": 7}
    )
    write_gguf(run, tmp_path)
    said = settings(tmp_path)
    assert "<|assistant|>" in said["tokenizer.chat_template"]
    assert (said["general.sampling.temp"], said["general.sampling.top_k"]) == (0.5, 7)


def test_a_second_end_is_written_and_more_of_them_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = language_model()
    for ends in (["<mask>"], ["<mask>", "<unk>"]):
        assert not caplog.messages
        run.generation = run.generation.model_copy(update={"ends": tuple(ends)})
        write_gguf(run, tmp_path)
        said = settings(tmp_path)
        assert said["tokenizer.ggml.eos_token_id"] == run.tokenizer.eos_id
        assert said["tokenizer.ggml.eot_token_id"] == run.tokenizer.token_to_id("<mask>")
    assert caplog.messages == ["model.gguf has no words for generation.ends; there texts are drawn without"]


def test_the_verb_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = exported(language_model(), tmp_path, "--to", "gguf", "--dtype", "fp16")
    assert [path.name for path in out.iterdir()] == ["model.gguf"]
    assert "a language model of the architecture 'llama' in fp16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"kind": "encoder"}, "llama.cpp gets language models alone; this model is kind='encoder'"),
        ({"feed_forward": "reglu"}, "the nearest is 'llama': feed_forward is 'reglu', there 'swiglu'"),
        ({"attention": WINDOW}, "attention has windows, there none"),
        ({"attention": {**BARE, "scale": 0.3}, "feed_forward": "relu2"}, "feed_forward is 'relu2', there 'swiglu'"),
        ({"position": "sinusoidal"}, "position is 'sinusoidal', there 'rope'"),
        ({"position": {"name": "rope", "scaling": "ntk", "factor": 2.0}}, "scaling"),
        ({"attention": "linear"}, "attention is 'linear', there 'softmax'"),
    ],
)  # fmt: skip
def test_what_it_has_no_words_for_is_refused(parts: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        check_gguf(made(**{**LIKE, **parts}), "fp32")
    assert said in str(told.value)


def test_a_wrong_dtype_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    language_model().save(tmp_path / "run")
    assert (
        main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "gguf", "--dtype", "q8_0"]) == 2
    )
    assert "unknown dtype 'q8_0'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import polyhead.export.gguf as writing

    monkeypatch.setattr(writing, "_to_numpy", lambda tensor: np.zeros(tensor.shape, np.float32))
    with pytest.raises(UserError, match=r"model\.gguf holds something else than this model"):
        write_gguf(language_model(), tmp_path)


# ---- vocabularies


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
            "it changes texts first (Lowercase)",
        ),
        (cut_by(pre_tokenizers.Whitespace(), BYTES_ALONE), "it cuts words by 'Whitespace'"),
        (
            cut_by(pre_tokenizers.Digits(individual_digits=False), GPT2_WORDS),
            "'Digits together' and 'ByteLevel'",
        ),
        (
            cut_by(pre_tokenizers.Split(QWEN_WORDS, "merged_with_next"), BYTES_ALONE),
            "it cuts words by 'Split'",
        ),
        (lambda: pieces(pre_tokenizers.Split("e", "isolated")), "Split beside bytes for what is unknown"),
        (cut_by(GPT2_WORDS, ignore_merges=True), "ignore_merges beside the rule 'gpt-2'"),
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
    """Of three bytes the first two, and then the third; what those make is the character as bytes are spelled."""
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


def test_scaled_rope_is_a_number_for_each_pair(tmp_path: Path) -> None:
    """Llama 3.1's rule: pairs of four turns or more in the old length as they were, those of one or fewer 8 times slower."""
    write_gguf(language_model(**PARTS["scaled by numbers"][1]), tmp_path)
    turns = [16 * 100.0 ** (-2 * j / 8) / (2 * np.pi) for j in range(4)]
    kept = [min(1.0, max(0.0, (t - 1) / 3)) for t in turns]
    wanted = torch.tensor([1 / (k + (1 - k) / 8) for k in kept])
    torch.testing.assert_close(tensors(tmp_path)["rope_freqs.weight"], wanted)
    assert 1 < wanted[0] < wanted[-1] == 8


# ---- llama.cpp itself


def asked(path: Path, ids: list[int]) -> Tensor:
    """What llama.cpp says behind each token, with keys and values in fp32."""
    llama = pytest.importorskip("llama_cpp")
    model = llama.Llama(
        str(path / "model.gguf"), n_ctx=32, n_batch=32, logits_all=True, verbose=False, type_k=0, type_v=0, n_threads=1
    )  # fmt: skip
    model.eval(ids)
    return torch.from_numpy(np.array(model.scores[: len(ids)]))


def same(found: Tensor, wanted: Tensor, gelu: bool) -> None:
    """It takes GELU in its tanh form from a table of fp16."""
    close = 4e-3 if gelu else 1e-5
    torch.testing.assert_close(found, wanted, rtol=0, atol=close)


@pytest.mark.parametrize("name", PARTS)
def test_llama_cpp_runs_our_parts(name: str, tmp_path: Path) -> None:
    run = language_model(**PARTS[name][1])
    write_gguf(run, tmp_path)
    same(asked(tmp_path, IDS), logits(run), "gelu" in str(PARTS[name][1]) or "geglu" in str(PARTS[name][1]))


@pytest.mark.parametrize(("family", "number"), RUN)
def test_llama_cpp_runs_published_families(family: str, number: int, tmp_path: Path) -> None:
    run = published(family, number, tmp_path)
    write_gguf(run, tmp_path)
    same(asked(tmp_path, IDS), logits(run), "g" in run.model.config.feed_forward.name[:2])


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


def test_llama_cpp_goes_on_with_the_same_text(tmp_path: Path) -> None:
    llama = pytest.importorskip("llama_cpp")
    run = language_model()
    write_gguf(run, tmp_path)
    model = llama.Llama(
        str(tmp_path / "model.gguf"), n_ctx=32, verbose=False, type_k=0, type_v=0, n_threads=1
    )
    for text in TEXTS[:2]:
        (ours,) = run.generate([text], temperature=0, max_new_tokens=5)
        theirs = model(text, max_tokens=5, temperature=0.0, repeat_penalty=1.0)["choices"][0]["text"]
        assert theirs == ours.replace("\N{REPLACEMENT CHARACTER}", "")  # it leaves out what is no text
