"""How a text's vector is made, as sentence-transformers says it, against its formulas on the reference's
encoder.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import TEXTS, make

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.tokenizers.tokenizer import Tokenizer

BERT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
    "max_position_embeddings": 64,
}  # fmt: skip
OLD = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens",
       "lasttoken": "pooling_mode_lasttoken"}  # fmt: skip
POOLS = {
    "cls": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.amax(0),
    "lasttoken": lambda x: x[-1],
}


def folder(directory: Path, pooling: dict[str, Any], *more: str) -> Any:
    """A small BERT with the files of sentence-transformers as versions 2 to 5 wrote them."""
    model = make(directory, "BertConfig", auto="AutoModel", **BERT)
    tokenizer = Tokenizer.load(directory)
    tokenizer.with_template([tokenizer.bos_id], [tokenizer.eos_id]).save(directory, has_segments=True)
    with_steps(directory, pooling, *more)
    return model


def with_steps(directory: Path, pooling: dict[str, Any], *more: str) -> None:
    names = ["Transformer", "Pooling", *more]
    steps = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" if i else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(names)
    ]
    (directory / "modules.json").write_text(json.dumps(steps))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 16, **pooling})
    )


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def wanted(
    model: Any, directory: Path, mode: str, normalized: bool, before: str = "", most: int = 64
) -> torch.Tensor:
    tokenizer, rows = transformers.AutoTokenizer.from_pretrained(directory), []
    for text in TEXTS:
        given = tokenizer(before + text, truncation=True, max_length=most, return_tensors="pt")
        with torch.no_grad():
            rows.append(POOLS[mode](model(**given).last_hidden_state[0]))
    found = torch.stack(rows)
    return found / found.norm(dim=1, keepdim=True) if normalized else found


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("written", ["old", "new"])
@pytest.mark.parametrize("mode", POOLS)
def test_vectors_are_made_as_the_checkpoint_says(
    mode: str, written: str, normalized: bool, tmp_path: Path
) -> None:
    said = {"pooling_mode": mode} if written == "new" else {key: name == mode for name, key in OLD.items()}
    model = folder(tmp_path / "a", said, *["Normalize"] * normalized)
    vectors = wanted(model, tmp_path / "a", mode, normalized)
    torch.testing.assert_close(ph.load(tmp_path / "a").embed(TEXTS), vectors, rtol=1e-5, atol=1e-5)

    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    again = ph.load(tmp_path / "b")
    torch.testing.assert_close(again.embed(TEXTS), vectors, rtol=1e-5, atol=1e-5)
    kinds = [
        step["type"].rsplit(".")[-1] for step in json.loads((tmp_path / "b" / "modules.json").read_text())
    ]
    assert kinds == ["Transformer", "Pooling", *["Normalize"] * normalized]
    config = json.loads((tmp_path / "b" / "1_Pooling" / "config.json").read_text())
    assert config == {"word_embedding_dimension": 16, **{key: name == mode for name, key in OLD.items()}}
    lengths = json.loads((tmp_path / "b" / "sentence_bert_config.json").read_text())
    assert lengths["max_seq_length"] == BERT["max_position_embeddings"]


def test_an_encoder_with_a_head_is_exported_for_that(tmp_path: Path) -> None:
    make(tmp_path / "a", "BertConfig", auto="AutoModelForMaskedLM", **BERT)
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "hf"]) == 0
    assert not (tmp_path / "b" / "modules.json").exists()


def test_what_is_asked_for_goes_before_what_the_run_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder(tmp_path, {"pooling_mode": "cls"}, "Normalize")
    run = ph.load(tmp_path)
    plain = wanted(model, tmp_path, "max", False)
    torch.testing.assert_close(run.embed(TEXTS, pooling="max", normalize=False), plain, rtol=1e-5, atol=1e-5)
    assert main(["embed", str(tmp_path), TEXTS[0], "--pooling", "max", "--no-normalize"]) == 0
    printed = [float(value) for value in capsys.readouterr().out.split("\t")]
    assert printed == pytest.approx(plain[0].tolist(), abs=1e-4)
    with pytest.raises(
        UserError,
        match="temperature has no effect on text embeddings; valid settings: embed_max_len, embed_prompt, ",
    ):
        run.embed(TEXTS, temperature=1.0)


@pytest.mark.parametrize(
    "said", ["sentence_bert_config.json", "sentence_roberta_config.json", "the tokenizer"]
)
def test_texts_are_read_as_far_as_the_checkpoint_says(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder(tmp_path / "a", {"pooling_mode": "mean"})
    capsys.readouterr()
    vectors = wanted(model, tmp_path / "a", "mean", False, most=6)
    if said == "the tokenizer":
        changed(tmp_path / "a" / "tokenizer_config.json", model_max_length=6)
    else:
        (tmp_path / "a" / said).write_text('{"max_seq_length": 6, "do_lower_case": false}')
        changed(tmp_path / "a" / "tokenizer_config.json", model_max_length=5)
    run = ph.load(tmp_path / "a")
    torch.testing.assert_close(run.embed(TEXTS), vectors, rtol=1e-5, atol=1e-5)
    whole = wanted(model, tmp_path / "a", "mean", False)
    assert not torch.allclose(whole, vectors, atol=1e-2)
    torch.testing.assert_close(run.embed(TEXTS, embed_max_len=None), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run.embed(TEXTS, embed_max_len=10**9), whole, rtol=1e-5, atol=1e-5)

    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in ["a", *TEXTS]))
    for chunk in ("1", "512"):
        assert main(["embed", str(tmp_path / "a"), str(tmp_path / "texts"), "--read-batch", chunk]) == 0
        told = "polyhead: truncated to 6 tokens: 3 of 4 texts; the longest is line "
        assert capsys.readouterr().err.startswith(told)
    assert main(["embed", str(tmp_path / "a"), "a"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["embed", str(tmp_path / "a"), "a", "--like", TEXTS[0]]) == 0
    assert capsys.readouterr().err == "polyhead: --like is truncated to 6 tokens\n"
    with pytest.raises(
        UserError, match="embed_max_len: 2 tokens are too few for a text: with special tokens at least 3"
    ):
        run.embed(TEXTS, embed_max_len=2)

    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    torch.testing.assert_close(ph.load(tmp_path / "b").embed(TEXTS), vectors, rtol=1e-5, atol=1e-5)
    lengths = json.loads((tmp_path / "b" / "sentence_bert_config.json").read_text())
    assert lengths["max_seq_length"] == 6


SPEAKERS = {
    # the two put nothing before a text; the first an end behind it, as Qwen3-Embedding does
    "Qwen3Config": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2,
                    "head_dim": 8, "intermediate_size": 20, "max_position_embeddings": 64,
                    "tie_word_embeddings": True},
    "GPT2Config": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
}  # fmt: skip


@pytest.mark.parametrize("mode", ["lasttoken", "mean"])
@pytest.mark.parametrize("config", SPEAKERS)
def test_language_models_make_vectors_too(config: str, mode: str, tmp_path: Path) -> None:
    make(tmp_path / "a", config, **SPEAKERS[config])
    model = transformers.AutoModel.from_pretrained(tmp_path / "a").eval()
    tokenizer = Tokenizer.load(tmp_path / "a")
    if config == "Qwen3Config":
        tokenizer.with_template([], [tokenizer.eos_id]).save(tmp_path / "a")
    with_steps(tmp_path / "a", {"pooling_mode": mode}, "Normalize")
    (tmp_path / "a" / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    for directory in ("a", "run", "b"):
        for fast in (False, True):
            run = ph.load(tmp_path / directory, fast=fast)
            for prompt, before, most in (("", "", 64), ("query", "the red: ", 64), ("query", "the red: ", 9)):
                vectors = wanted(model, tmp_path / "a", mode, True, before, most)
                found = run.embed(TEXTS, embed_prompt=prompt, embed_max_len=most)
                torch.testing.assert_close(found, vectors, rtol=1e-5, atol=1e-5)
        assert run.embed(["", "the king"]).isfinite().all()
    written = json.loads((tmp_path / "b" / "1_Pooling" / "config.json").read_text())
    assert written[OLD[mode]] is True


OWN = {"tie_word_embeddings": False}
BARE = {
    "MistralConfig": {**SPEAKERS["Qwen3Config"], **OWN, "num_key_value_heads": 1, "sliding_window": 5},
    "GPT2Config": {**SPEAKERS["GPT2Config"], **OWN},
    "Gemma3TextConfig": {**SPEAKERS["Qwen3Config"], **OWN, "sliding_window": 4},
    "PhiConfig": {**SPEAKERS["Qwen3Config"], "num_hidden_layers": 3},  # whose head has a bias, tied or not
}


@pytest.mark.parametrize("mode", ["lasttoken", "mean"])
@pytest.mark.parametrize("config", BARE)
def test_a_language_model_without_a_head_makes_vectors_alone(
    config: str, mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make(tmp_path / "a", config, auto="AutoModel", **BARE[config])
    tokenizer = Tokenizer.load(tmp_path / "a")
    tokenizer.with_template([tokenizer.bos_id], [tokenizer.eos_id]).save(tmp_path / "a")
    with_steps(tmp_path / "a", {"pooling_mode": mode}, "Normalize")
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    for directory in ("a", "run", "b"):
        for fast in (False, True):
            run = ph.load(tmp_path / directory, fast=fast)
            for before, most in (("", 64), ("the red: ", 64), ("the red: ", 9)):
                vectors = wanted(model, tmp_path / "a", mode, True, before, most)
                found = run.embed(TEXTS, embed_prompt=before, embed_max_len=most)
                torch.testing.assert_close(found, vectors, rtol=1e-5, atol=1e-5)
        assert run.embed(["", "the king"]).isfinite().all()
    before, after = (load_file(tmp_path / directory / "model.safetensors") for directory in ("a", "b"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again, info = transformers.AutoModel.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    assert type(again) is type(model)
    said = [json.loads((tmp_path / directory / "config.json").read_text()) for directory in ("a", "b")]
    assert said[0]["architectures"] == said[1]["architectures"] == [type(model).__name__]
    capsys.readouterr()
    (tmp_path / "text").write_text("the king\n")
    for verb in ("generate", "score", "fill-mask", "classify", "translate", "eval"):
        given = str(tmp_path / "text") if verb != "generate" else "the king"
        assert main([verb, str(tmp_path / "run"), given]) == 2, verb
        told = capsys.readouterr().err
        assert told.startswith("polyhead: ") and told.count("\n") == 1, told
        assert verb in ("fill-mask", "eval") or told.endswith(
            "an encoder without a head: use embed or attend\n"
        ), told


@pytest.mark.parametrize("around", [([], []), ([], [2]), ([1], [])], ids=["nothing", "an end", "a beginning"])
def test_a_language_model_without_a_head_reads_what_its_tokenizer_puts_about_a_text(
    around: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    model = make(tmp_path / "a", "MistralConfig", auto="AutoModel", **BARE["MistralConfig"])
    Tokenizer.load(tmp_path / "a").with_template(*around).save(tmp_path / "a")
    with_steps(tmp_path / "a", {"pooling_mode": "lasttoken"})
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")(TEXTS[0])["input_ids"]
    vectors = wanted(model, tmp_path / "a", "lasttoken", False)
    for directory in ("a", "run", "b"):
        run = ph.load(tmp_path / directory)
        torch.testing.assert_close(run.embed(TEXTS), vectors, rtol=1e-5, atol=1e-5)
        assert run.embed(["", "the king"]).isfinite().all()
        assert run.attention_maps(TEXTS[0])["self"].weights.size(-1) == len(ids)
        assert run.attention_maps("")["self"].weights.size(-1) == 1
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    assert again(TEXTS[0])["input_ids"] == ids


def test_a_lost_head_is_missed(tmp_path: Path) -> None:
    make(tmp_path, "MistralConfig", **BARE["MistralConfig"])
    found = load_file(tmp_path / "model.safetensors")
    del found["lm_head.weight"]
    save_file(found, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"missing: lm_head\.weight"):
        ph.load(tmp_path)


def test_a_language_model_that_is_asked_for_no_vectors_says_nothing_of_them(tmp_path: Path) -> None:
    make(tmp_path / "a", "GPT2Config", **SPEAKERS["GPT2Config"])
    assert main(["export", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "hf"]) == 0
    assert not (tmp_path / "b" / "modules.json").exists()


PROMPTS = {"query": "the red: ", "document": None}


def test_prompts_stand_before_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = folder(tmp_path / "a", {"pooling_mode": "mean"})
    said = {"prompts": PROMPTS, "default_prompt_name": "query", "similarity_fn_name": "cosine"}
    (tmp_path / "a" / "config_sentence_transformers.json").write_text(json.dumps(said))
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    again = json.loads((tmp_path / "b" / "config_sentence_transformers.json").read_text())
    assert again == {"prompts": {"query": "the red: ", "document": ""}, "default_prompt_name": "query"}

    plain, queries, other = (
        wanted(model, tmp_path / "a", "mean", False, before) for before in ("", "the red: ", "one dog, ")
    )
    for directory in ("a", "run", "b"):
        run = ph.load(tmp_path / directory)
        for given, vectors in (
            ({}, queries),
            ({"embed_prompt": "query"}, queries),
            ({"embed_prompt": "document"}, plain),
            ({"embed_prompt": ""}, plain),
            ({"embed_prompt": "one dog, "}, other),
        ):
            torch.testing.assert_close(run.embed(TEXTS, **given), vectors, rtol=1e-5, atol=1e-5)
    capsys.readouterr()
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    asked = ["embed", str(tmp_path / "run"), str(tmp_path / "texts"), "--prompt", "document"]
    for more, like in (([], plain[0]), (["--like-prompt", "query"], queries[0])):
        assert main([*asked, "--like", TEXTS[0], *more]) == 0
        near = [float(line.split("\t")[0]) for line in capsys.readouterr().out.splitlines()]
        assert near == pytest.approx(torch.cosine_similarity(plain, like[None]).tolist(), abs=1e-4)
    assert main([*asked, "--like-prompt", "query"]) == 2
    assert "--like-prompt requires --like" in capsys.readouterr().err
    assert main([*asked[:3], "--prompt", "qurey"]) == 2
    told = (
        "unknown prompt 'qurey'; did you mean 'query'? Known: document, query; a prompt itself contains "
        "a space or punctuation"
    )
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("mode", POOLS)
def test_tokens_of_a_prompt_may_not_count(mode: str, tmp_path: Path) -> None:
    model = folder(tmp_path / "a", {"pooling_mode": mode, "include_prompt": False})
    said = {"prompts": PROMPTS, "default_prompt_name": "query"}
    (tmp_path / "a" / "config_sentence_transformers.json").write_text(json.dumps(said))
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    assert json.loads((tmp_path / "b" / "1_Pooling" / "config.json").read_text())["include_prompt"] is False
    before, plain = PROMPTS["query"], wanted(model, tmp_path / "a", mode, False)
    assert before is not None
    tokenizer, rows = transformers.AutoTokenizer.from_pretrained(tmp_path / "a"), []
    count = len(tokenizer(before)["input_ids"]) - 1  # </s> ends it, <s> begins it
    for text in TEXTS:
        with torch.no_grad():
            rows.append(model(**tokenizer(before + text, return_tensors="pt")).last_hidden_state[0])
    assert count > 3
    behind, all_of = (torch.stack([POOLS[mode](x[start:]) for x in rows]) for start in (count, 0))
    for directory in ("a", "run", "b"):
        run = ph.load(tmp_path / directory)
        torch.testing.assert_close(run.embed(TEXTS), behind, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(run.embed(TEXTS[:1]), behind[:1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(run.embed(TEXTS, include_prompt=True), all_of, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(run.embed(TEXTS, embed_prompt=""), plain, rtol=1e-5, atol=1e-5)


ACTIVATIONS = {
    "linear.Identity": lambda x: x,
    "activation.Tanh": torch.tanh,
    "activation.GELU": torch.nn.functional.gelu,
}
DENSE = {
    "one": [(16, 12, True, "activation.Tanh")],
    "two": [(16, 40, False, "linear.Identity"), (40, 6, True, "activation.GELU")],
}  # fmt: skip


def with_dense(directory: Path, maps: list[tuple[int, int, bool, str]]) -> list[torch.nn.Linear]:
    """Random weights in the directories that ``with_steps`` names."""
    torch.manual_seed(3)
    made = [torch.nn.Linear(given, width, bias) for given, width, bias, _ in maps]
    for i, (linear, (given, width, bias, function)) in enumerate(zip(made, maps, strict=True), 2):
        place = directory / f"{i}_Dense"
        place.mkdir()
        said = {"in_features": given, "out_features": width, "bias": bias}
        (place / "config.json").write_text(
            json.dumps(said | {"activation_function": f"torch.nn.modules.{function}"})
        )
        save_file({f"linear.{key}": x for key, x in linear.state_dict().items()}, place / "model.safetensors")
    return made


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", DENSE)
def test_vectors_go_through_dense_maps(name: str, normalized: bool, tmp_path: Path) -> None:
    maps = DENSE[name]
    more = ["Dense"] * len(maps) + ["Normalize"] * normalized
    model = folder(tmp_path / "a", {"pooling_mode": "cls"}, *more)
    made = with_dense(tmp_path / "a", maps)
    vectors = wanted(model, tmp_path / "a", "cls", False)
    with torch.no_grad():
        for linear, (*_, function) in zip(made, maps, strict=True):
            vectors = ACTIVATIONS[function](linear(vectors))
    vectors = vectors / vectors.norm(dim=1, keepdim=True) if normalized else vectors
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    for directory in ("a", "run", "b"):
        for fast in (False, True):
            run = ph.load(tmp_path / directory, fast=fast)
            torch.testing.assert_close(run.embed(TEXTS), vectors, rtol=1e-5, atol=1e-6)
    assert main(["embed", str(tmp_path / "run"), TEXTS[0], "--output", str(tmp_path / "one.npy")]) == 0
    assert np.load(tmp_path / "one.npy").shape == (1, maps[-1][1])
    files = ["model.safetensors", *(f"{i}_Dense/model.safetensors" for i in range(2, 2 + len(maps)))]
    for file in files:
        before, after = (load_file(tmp_path / directory / file) for directory in ("a", "b"))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
    steps = [json.loads((tmp_path / directory / "modules.json").read_text()) for directory in ("a", "b")]
    assert steps[0] == steps[1]
    for i in range(2, 2 + len(maps)):
        said = [json.loads((tmp_path / d / f"{i}_Dense" / "config.json").read_text()) for d in ("a", "b")]
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"in_features": 12}, "in_features is 12, expected 16, the only supported value"),
        ({"use_residual": True}, "use_residual is true, expected false"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings', expected"),
        ({"activation_function": "mine.Tanh"}, "activation_function is 'mine.Tanh', expected one of "
                                               "Identity, Tanh, ReLU, GELU"),
        ({"out_features": 7}, r"with another shape: 2_Dense/linear.bias \[12\], expected \[7\]"),
        ({"rank": 7}, "'rank' unknown"),
        (None, "has no 2_Dense/model.safetensors, only pytorch_model.bin: pickle files can run code"),
    ],
)  # fmt: skip
def test_dense_maps_that_are_not_built_are_refused(
    change: dict[str, Any] | None, said: str, tmp_path: Path
) -> None:
    folder(tmp_path, {"pooling_mode": "mean"}, "Dense")
    with_dense(tmp_path, DENSE["one"])
    if change is None:
        (tmp_path / "2_Dense" / "model.safetensors").rename(tmp_path / "2_Dense" / "pytorch_model.bin")
    else:
        changed(tmp_path / "2_Dense" / "config.json", **change)
    with pytest.raises(UserError, match=said):
        ph.load(tmp_path)


def test_a_classifier_may_begin_with_an_encoder_whose_vectors_are_mapped(tmp_path: Path) -> None:
    folder(tmp_path / "a", {"pooling_mode": "mean"}, "Dense")
    with_dense(tmp_path / "a", DENSE["one"])
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "run")]) == 0
    (tmp_path / "texts.tsv").write_text(
        "label\ttext\n" + "".join(f"{i % 2}\t{text}\n" for i, text in enumerate(TEXTS * 4))
    )
    file = [str(tmp_path / "texts.tsv")]
    recipe = {
        "task": "classification", "data": {"train": file, "valid": file, "label": "label", "text": "text"},
        "init_from": str(tmp_path / "run"), "out": str(tmp_path / "out"), "train": {"steps": 2,
            "max_tokens": 64},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 0
    begun, own = (ph.load(tmp_path / name).config for name in ("run", "out"))
    assert (len(begun.dense), own.dense, own.d_model) == (1, (), 16)


def test_a_map_of_what_has_the_length_1_is_refused(tmp_path: Path) -> None:
    folder(tmp_path, {"pooling_mode": "mean"}, "Normalize", "Dense")
    with pytest.raises(UserError, match="3_Dense applies to normalized vectors"):
        ph.load(tmp_path)


@pytest.mark.parametrize("steps", [[0, 2], [0, 2, 1]], ids=["no pooling", "pooling behind it"])
def test_a_map_of_the_vectors_of_tokens_is_refused(steps: list[int], tmp_path: Path) -> None:
    """As ColBERT has one, which compares texts token by token."""
    folder(tmp_path, {"pooling_mode": "mean"}, "Dense")
    with_dense(tmp_path, DENSE["one"])
    all_steps = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps([all_steps[i] for i in steps]))
    with pytest.raises(UserError, match="2_Dense applies to token embeddings; only linear maps of the text"):
        ph.load(tmp_path)


def test_other_forms_have_no_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(tmp_path / "a", {"pooling_mode": "mean"}, "Dense")
    with_dense(tmp_path / "a", DENSE["one"])
    for form in ("onnx", "ctranslate2"):
        assert main(["export", str(tmp_path / "a"), str(tmp_path / form), "--to", form]) == 2
        assert "dense" in capsys.readouterr().err


def test_a_prompt_without_a_name_is_written_as_its_own(tmp_path: Path) -> None:
    folder(tmp_path / "a", {"pooling_mode": "mean"})
    run = ph.load(tmp_path / "a")
    run.generation = run.generation.model_copy(update={"embed_prompt": "a dog: "})
    run.save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "b"), "--to", "hf"]) == 0
    again = json.loads((tmp_path / "b" / "config_sentence_transformers.json").read_text())
    assert again == {"prompts": {"a dog: ": "a dog: "}, "default_prompt_name": "a dog: "}
    assert ph.load(tmp_path / "b").generation.prompt_text == "a dog: "


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config_sentence_transformers.json", {"prompts": ["a: "]}, r"prompts is \['a: '\], expected an "
            r"object of strings by name"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "expected an object of strings by name"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "a: "}, "default_prompt_name": "querry"},
            "default_prompt_name is 'querry', expected one of query; did you mean 'query'?",
        ),
        ("sentence_bert_config.json", {"max_seq_length": "64"},
            "max_seq_length is '64', expected an integer"),
        ("sentence_bert_config.json", {"do_lower_case": 1}, "do_lower_case is 1, expected true or false"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_meant_are_told(name: str, content: Any, said: str, tmp_path: Path) -> None:
    folder(tmp_path, {"pooling_mode": "mean"})
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=said):
        ph.load(tmp_path)


@pytest.mark.parametrize(
    ("pooling", "more", "said"),
    [
        (
            {"pooling_mode": "weightedmean"},
            [],
            "pooling is ['weightedmean']; the mean is used instead; supported: cls, mean, max, lasttoken",
        ),
        ({OLD["cls"]: True, OLD["max"]: True}, [], "pooling is ['cls', 'max']; the mean is used instead"),
        (
            {"pooling_mode_weightedmean_tokens": True},
            [],
            "edmean_tokens']; the mean is used instead",
        ),
        ({"pooling_mode": "mean"}, ["LSTM"], "there text embeddings go through LSTM, here they do not"),
    ],
)
def test_what_is_not_built_is_warned_of(
    pooling: dict[str, Any], more: list[str], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder(tmp_path, pooling, *more)
    with caplog.at_level(logging.WARNING):
        assert ph.load(tmp_path).generation.pooling == "mean"
    (warned,) = [record.getMessage() for record in caplog.records]
    assert said in warned


def test_lower_case_that_the_tokenizer_does_not_make_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder(tmp_path, {"pooling_mode": "mean"})
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    with caplog.at_level(logging.WARNING):
        ph.load(tmp_path)
        rules = json.loads((tmp_path / "tokenizer.json").read_text())
        (tmp_path / "tokenizer.json").write_text(json.dumps(rules | {"normalizer": {"type": "Lowercase"}}))
        ph.load(tmp_path)
    (warned,) = [record.getMessage() for record in caplog.records]
    assert "sentence_bert_config.json: there texts are lowercased, here they are not" in warned


@pytest.mark.acceptance("F6")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "modules.json must be a JSON list of objects"),
        ("[1]", "modules.json must be a JSON list of objects"),
        ("[", "modules.json is not valid JSON"),
        ('[{"type": "a.Pooling", "path": "../other"}]', "is a link to a file outside the checkpoint"),
        ('[{"type": "a.Pooling", "path": "/etc"}]', None),
        ('[{"type": "a.Pooling", "path": 5}]', None),
    ],
)
def test_damaged_files_are_told_and_nothing_outside_is_read(
    content: str, message: str | None, tmp_path: Path
) -> None:
    folder(tmp_path / "a", {"pooling_mode": "cls"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"pooling_mode": "max"}')
    (tmp_path / "a" / "modules.json").write_text(content)
    if message is None:
        assert ph.load(tmp_path / "a").generation.pooling == "mean"
        return
    with pytest.raises(UserError, match=message):
        ph.load(tmp_path / "a")
