"""Files of GGUF against the runs they were made from: by transformers' reader, by gguf's own, and by
llama.cpp itself.

llama.cpp is built from its sources (pip install llama-cpp-python); what asks it is skipped where it is not
installed.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.export.conftest import TEXTS, exported
from tests.export.gguf_helpers import NANO, NUMBERS, PARTS, language_model, published, settings, tensors
from torch import Tensor

from polyhead import Choice
from polyhead.cli import main
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.export.gguf import write_gguf
from polyhead.run.run import Run

IDS = [1, 5, 9, 200, 17, 33, 70, 71, 8, 9, 250, 3]
# cases of the families' own tests that transformers' reader knows whole
READ = [("llama", 0), ("mistral", 0), ("qwen2", 0), ("qwen2", 1), ("bloom", 0), ("bloom", 1), ("stablelm", 0),
        ("starcoder2", 0)]  # fmt: skip
RUN = [(family, number) for family, numbers in NUMBERS.items() for number in numbers]


@torch.no_grad()
def logits(run: Run, ids: list[int] = IDS) -> Tensor:
    return run.model.eval()(torch.tensor([ids]))[0]


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
                "data": {"train": "a.txt", "valid": "b.txt", "document_separator": documents},
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
        run.generation = run.generation.model_copy(update={"stop_tokens": tuple(ends)})
        write_gguf(run, tmp_path)
        said = settings(tmp_path)
        assert said["tokenizer.ggml.eos_token_id"] == run.tokenizer.eos_id
        assert said["tokenizer.ggml.eot_token_id"] == run.tokenizer.token_to_id("<mask>")
    assert caplog.messages == [
        "model.gguf does not support generation.stop_tokens; there sampling ignores it"
    ]


def test_the_verb_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = exported(language_model(), tmp_path, "--to", "gguf", "--dtype", "fp16")
    assert [path.name for path in out.iterdir()] == ["model.gguf"]
    assert "a language model of the architecture 'llama' in fp16" in capsys.readouterr().out


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
    with pytest.raises(UserError, match=r"model\.gguf differs from this model"):
        write_gguf(language_model(), tmp_path)


# ---- vocabularies


# ---- llama.cpp itself


def asked(path: Path, ids: list[int]) -> Tensor:
    """What llama.cpp says behind each token, with keys and values in fp32."""
    llama = pytest.importorskip("llama_cpp")
    model = llama.Llama(
        str(path / "model.gguf"), n_ctx=32, n_batch=32, logits_all=True, verbose=False, type_k=0, type_v=0,
            n_threads=1
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
