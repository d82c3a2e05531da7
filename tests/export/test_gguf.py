"""llama.cpp is built from its sources (pip install llama-cpp-python), or its tests are skipped."""

import gguf
import numpy as np
import pytest
import torch
from tests.export.conftest import TEXTS, export_run
from tests.export.gguf_helpers import (
    FAMILY_ROWS,
    NANO,
    PARTS,
    language_model,
    published_run,
    read_metadata,
    read_tensors,
    tensor_types,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyhead.export.gguf as gguf_export
from polyhead import Choice
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.export.gguf import write_gguf

IDS = [1, 5, 9, 200, 17, 33, 70, 71, 8, 9, 250, 3]
# rows of the families' tables that transformers' reader supports
TRANSFORMERS_ROWS = [(name, 0) for name in ("llama", "mistral", "qwen2", "bloom", "stablelm", "starcoder2")]
TRANSFORMERS_ROWS += [("qwen2", 1), ("bloom", 1)]
LLAMA_CPP_ROWS = [(family, number) for family, numbers in FAMILY_ROWS.items() for number in numbers]


@torch.no_grad()
def logits_of(run):
    return run.model.eval()(torch.tensor([IDS]))[0]


@pytest.mark.parametrize(("family", "number"), TRANSFORMERS_ROWS)
def test_transformers_reads_same_model(family, number, tmp_path):
    run = published_run(family, number, tmp_path)
    write_gguf(run, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        logits = reference(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(logits, logits_of(run), rtol=1e-5, atol=1e-5)


def test_transformers_reads_same_tokenizer(tmp_path):
    run = language_model()
    write_gguf(run, tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    texts = [*TEXTS, "naïve 中文 \n\n  x"]
    assert reference(texts, add_special_tokens=False).input_ids == run.tokenizer.encode(texts)


def test_missing_biases_and_centered_norms(tmp_path):
    write_gguf(language_model(**NANO), tmp_path)
    biases = {name: x for name, x in read_tensors(tmp_path).items() if name.endswith(".bias")}
    names = ("attn_qkv", "attn_output", "attn_norm", "ffn_up", "ffn_down", "ffn_norm")
    assert {*(f"blk.1.{name}.bias" for name in names), "output_norm.bias"} <= biases.keys()
    assert not any(x.any() for x in biases.values()) and biases["blk.1.attn_qkv.bias"].shape == (3 * 24,)
    run = language_model(**PARTS["gemma3"][1])
    write_gguf(run, tmp_path)
    weights, tensors = run.model.state_dict(), read_tensors(tmp_path)
    for written_name, name in {
        "blk.0.attn_norm": "stack.layers.0.attn_residual.norm",
        "blk.2.attn_q_norm": "stack.layers.2.attn.q_norm",
        "blk.1.post_ffw_norm": "stack.layers.1.ffn_residual.sandwich_norm",
        "output_norm": "stack.final_norm",
    }.items():
        torch.testing.assert_close(tensors[f"{written_name}.weight"], weights[f"{name}.weight"] + 1)
    metadata = read_metadata(tmp_path)
    assert metadata["gemma3.attention.sliding_window_pattern"] == [True, False, True]
    assert (metadata["gemma3.rope.freq_base"], metadata["gemma3.rope.freq_base_swa"]) == (10000.0, 50.0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("fp16", 2**-11), ("bf16", 2**-8), ("int8", 0.006), ("int4", 0.13)]
)
def test_rounded_weights_are_close(dtype, tolerance, tmp_path):
    run = language_model(d_model=64, d_ff=96, n_heads=2)
    write_gguf(run, tmp_path, dtype)
    weights, tensors = run.model.state_dict(), read_tensors(tmp_path)
    expected = weights["stack.layers.1.ffn.down_proj.weight"]
    assert 0 < (tensors["blk.1.ffn_down.weight"] - expected).abs().max() <= tolerance * expected.abs().max()
    assert torch.equal(tensors["output_norm.weight"], weights["stack.final_norm.weight"])


@pytest.mark.parametrize("tie", ["none", "all"])
def test_embeddings_have_eight_bits(tie, tmp_path):
    run = language_model(d_ff=40, d_model=64, n_heads=2, tie_embeddings=tie)
    for dtype, type_name in (("int8", "Q8_0"), ("int4", "Q4_0")):
        write_gguf(run, tmp_path, dtype)
        types = tensor_types(tmp_path)
        embeddings = {name: types[name] for name in ("token_embd.weight", "output.weight") if name in types}
        names = ["token_embd.weight", "output.weight"] if tie == "none" else ["token_embd.weight"]
        assert embeddings == dict.fromkeys(names, "Q8_0")
        assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("F16", type_name)
    assert read_metadata(tmp_path)["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_0


@pytest.mark.parametrize(("separator", "has_bos"), [("line", True), ("file", False)])
def test_tokens_around_texts_chats_and_sampling(separator, has_bos, tmp_path):
    """Lines start with their end token, files with nothing."""
    run, data = language_model(), {"train": "a.txt", "valid": "b.txt", "document_separator": separator}
    run.recipe = Recipe.model_validate({"task": "language-model", "data": data, "train": {"steps": 1}})
    settings = {"chat": Choice("zephyr"), "temperature": 0.5, "top_k": 7}
    run.generation = run.generation.model_copy(update=settings)
    write_gguf(run, tmp_path)
    metadata = read_metadata(tmp_path)
    assert "<|assistant|>" in metadata["tokenizer.chat_template"]
    assert (metadata["general.sampling.temp"], metadata["general.sampling.top_k"]) == (0.5, 7)
    assert metadata["tokenizer.ggml.add_bos_token"] is has_bos
    assert metadata["tokenizer.ggml.eos_token_id"] == run.tokenizer.eos_id
    if has_bos:
        assert metadata["tokenizer.ggml.bos_token_id"] == run.tokenizer.eos_id


def test_second_end_is_written_third_warns(tmp_path, caplog):
    run = language_model()
    for stop_tokens in (("<mask>",), ("<mask>", "<unk>")):
        assert not caplog.messages
        run.generation = run.generation.model_copy(update={"stop_tokens": stop_tokens})
        write_gguf(run, tmp_path)
        metadata = read_metadata(tmp_path)
        assert metadata["tokenizer.ggml.eos_token_id"] == run.tokenizer.eos_id
        assert metadata["tokenizer.ggml.eot_token_id"] == run.tokenizer.token_to_id("<mask>")
    message = "model.gguf does not support generation.stop_tokens; there sampling ignores it"
    assert caplog.messages == [message]


def test_export_verb_verifies(tmp_path, capsys, monkeypatch):
    directory = export_run(language_model(), tmp_path, "--to", "gguf", "--dtype", "fp16")
    assert [path.name for path in directory.iterdir()] == ["model.gguf"]
    assert "a language model of the architecture 'llama' in fp16" in capsys.readouterr().out
    options = ["--to", "gguf", "--dtype", "q8_0"]
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "other"), *options]) == 2
    assert "unknown dtype 'q8_0'" in capsys.readouterr().err and not (tmp_path / "other").exists()
    monkeypatch.setattr(gguf_export, "_to_numpy", lambda tensor: np.zeros(tensor.shape, np.float32))
    with pytest.raises(UserError, match=r"model\.gguf differs from this model"):
        write_gguf(language_model(), tmp_path)


def check_llama_cpp(run, directory):
    """The logits of llama.cpp with keys and values in fp32; its tanh of GELU is a table of fp16."""
    llama = pytest.importorskip("llama_cpp")
    write_gguf(run, directory)
    options = {"n_ctx": 32, "n_batch": 32, "type_k": 0, "type_v": 0, "n_threads": 1, "verbose": False}
    model = llama.Llama(str(directory / "model.gguf"), logits_all=True, **options)
    model.eval(IDS)
    logits = torch.from_numpy(np.array(model.scores[: len(IDS)]))
    atol = 4e-3 if "ge" in run.config.feed_forward.name else 1e-5
    torch.testing.assert_close(logits, logits_of(run), rtol=0, atol=atol)


@pytest.mark.parametrize("name", PARTS)
def test_llama_cpp_runs_components(name, tmp_path):
    check_llama_cpp(language_model(**PARTS[name][1]), tmp_path)


@pytest.mark.parametrize(("family", "number"), LLAMA_CPP_ROWS)
def test_llama_cpp_runs_published_families(family, number, tmp_path):
    check_llama_cpp(published_run(family, number, tmp_path), tmp_path)


def test_llama_cpp_generates_same_text(tmp_path):
    llama, run = pytest.importorskip("llama_cpp"), language_model()
    write_gguf(run, tmp_path)
    options = {"n_ctx": 32, "type_k": 0, "type_v": 0, "n_threads": 1, "verbose": False}
    model = llama.Llama(str(tmp_path / "model.gguf"), **options)
    for text in TEXTS[:2]:
        (expected,) = run.generate([text], temperature=0, max_new_tokens=5)
        output = model(text, max_tokens=5, temperature=0.0, repeat_penalty=1.0)["choices"][0]["text"]
        assert output == expected.replace("\N{REPLACEMENT CHARACTER}", "")  # which it leaves out
