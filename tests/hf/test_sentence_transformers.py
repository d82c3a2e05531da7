import json
import logging

import numpy as np
import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS, edit_json, export_run, make
from tests.hf.families.encoders import train_classifier
from tests.hf.families.laws import assert_same_tensors, open_reference, round_trip
from tests.hf.load_helpers import REFUSALS, rename_as_pickle
from tests.hf.sentence_helpers import (
    BERT,
    POOLING,
    make_bert,
    read_json,
    reference_vectors,
    set_template,
    write_dense,
    write_json,
    write_modules,
)

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError

OLDER_KEYS = {mode: f"pooling_mode_{mode}_tokens" for mode in ("mean", "max")}
OLDER_KEYS |= {"cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}
PROMPTS = {"query": "the red: ", "document": None}
QUERY_DEFAULT = {"prompts": PROMPTS, "default_prompt_name": "query"}
PROMPT_FILE = "config_sentence_transformers.json"
LENGTH_FILE = "sentence_bert_config.json"


def assert_close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("keys", ["older", "newer"])
@pytest.mark.parametrize("mode", POOLING)
def test_vectors_use_pooling_of_checkpoint(mode, keys, normalize, tmp_path):
    checkpoint, older = tmp_path / "checkpoint", {key: name == mode for name, key in OLDER_KEYS.items()}
    modules = ["Normalize"] * normalize
    model = make_bert(checkpoint, older if keys == "older" else {"pooling_mode": mode}, *modules)
    expected = reference_vectors(model, checkpoint, mode, normalize)
    _, exported_dir = round_trip(checkpoint)
    for directory in (checkpoint, exported_dir):
        assert_close(ph.load(directory).embed(TEXTS), expected)
    kinds = [step["type"].rsplit(".")[-1] for step in read_json(exported_dir / "modules.json")]
    assert kinds == ["Transformer", "Pooling", *modules]
    config = read_json(exported_dir / "1_Pooling" / "config.json")
    assert config == {"word_embedding_dimension": 16, **older}
    assert read_json(exported_dir / LENGTH_FILE)["max_seq_length"] == BERT["max_position_embeddings"]


def test_options_override_pooling_of_run(tmp_path, capsys):
    model = make_bert(tmp_path, {"pooling_mode": "cls"}, "Normalize")
    run, expected = ph.load(tmp_path), reference_vectors(model, tmp_path, "max", False)
    assert_close(run.embed(TEXTS, pooling="max", normalize=False), expected)
    assert main(["embed", str(tmp_path), TEXTS[0], "--pooling", "max", "--no-normalize"]) == 0
    vector = [float(value) for value in capsys.readouterr().out.split("\t")]
    assert vector == pytest.approx(expected[0].tolist(), abs=1e-4)
    message = "temperature has no effect on text embeddings; valid settings: embed_max_len, embed_prompt, "
    with pytest.raises(UserError, match=message):
        run.embed(TEXTS, temperature=1.0)


@pytest.mark.parametrize("file", [LENGTH_FILE, "sentence_roberta_config.json", "tokenizer_config.json"])
def test_texts_are_truncated_to_max_seq_length(file, tmp_path, capsys):
    checkpoint = tmp_path / "checkpoint"
    model = make_bert(checkpoint, {"pooling_mode": "mean"})
    truncated_vectors, complete = (
        reference_vectors(model, checkpoint, "mean", False, max_len=n) for n in (6, 64)
    )
    assert not torch.allclose(complete, truncated_vectors, atol=1e-2)
    is_tokenizer = file == "tokenizer_config.json"
    edit_json(checkpoint / "tokenizer_config.json", model_max_length=6 if is_tokenizer else 5)
    if not is_tokenizer:
        write_json(checkpoint / file, {"max_seq_length": 6, "do_lower_case": False})
    run = ph.load(checkpoint)
    assert_close(run.embed(TEXTS), truncated_vectors)
    for max_len in (None, 10**9):
        assert_close(run.embed(TEXTS, embed_max_len=max_len), complete)
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in ["a", *TEXTS]))
    capsys.readouterr()
    for chunk in ("1", "512"):
        assert main(["embed", str(checkpoint), str(tmp_path / "texts"), "--read-batch", chunk]) == 0
        message = "polyhead: truncated to 6 tokens: 3 of 4 texts; the longest is line "
        assert capsys.readouterr().err.startswith(message)
    for options, error in (([], ""), (["--like", TEXTS[0]], "polyhead: --like is truncated to 6 tokens\n")):
        assert main(["embed", str(checkpoint), "a", *options]) == 0 and capsys.readouterr().err == error
    message = "embed_max_len: 2 tokens are too few for a text: with special tokens at least 3"
    with pytest.raises(UserError, match=message):
        run.embed(TEXTS, embed_max_len=2)
    _, exported_dir = round_trip(checkpoint)
    assert_close(ph.load(exported_dir).embed(TEXTS), truncated_vectors)
    assert read_json(exported_dir / LENGTH_FILE)["max_seq_length"] == 6


LLAMA = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA |= {"head_dim": 8, "intermediate_size": 20, "max_position_embeddings": 64}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
UNTIED_HEAD = {"tie_word_embeddings": False}
DECODERS = {"Qwen3Config": LLAMA | {"tie_word_embeddings": True}, "GPT2Config": GPT2}
BARE_DECODERS = {
    "MistralConfig": LLAMA | UNTIED_HEAD | {"num_key_value_heads": 1, "sliding_window": 5},
    "GPT2Config": GPT2 | UNTIED_HEAD,
    "Gemma3TextConfig": LLAMA | UNTIED_HEAD | {"sliding_window": 4},
    "PhiConfig": LLAMA | {"num_hidden_layers": 3},  # whose head has a bias, tied or not
}


def check_vectors(directories, model, mode, prompts):
    runs = [ph.load(directory, fast=fast) for directory in directories for fast in (False, True)]
    for prompt, text, max_len in (("", "", 64), *((*row, n) for row in prompts.items() for n in (64, 9))):
        expected = reference_vectors(model, directories[0], mode, True, text, max_len)
        for run in runs:
            assert_close(run.embed(TEXTS, embed_prompt=prompt, embed_max_len=max_len), expected)
    assert all(run.embed(["", "the king"]).isfinite().all() for run in runs)


@pytest.mark.parametrize("mode", ["lasttoken", "mean"])
@pytest.mark.parametrize("config", DECODERS)
def test_vectors_of_language_models(config, mode, tmp_path):
    """Texts have no prefix; Qwen3-Embedding puts the end behind them."""
    checkpoint = tmp_path / "checkpoint"
    make(checkpoint, config, **DECODERS[config])
    model = transformers.AutoModel.from_pretrained(checkpoint).eval()
    if config == "Qwen3Config":
        set_template(checkpoint, [], [2])
    write_modules(checkpoint, {"pooling_mode": mode}, "Normalize")
    write_json(checkpoint / PROMPT_FILE, {"prompts": PROMPTS})
    run_dir, exported_dir = round_trip(checkpoint)
    check_vectors((checkpoint, run_dir, exported_dir), model, mode, {"query": "the red: "})
    assert read_json(exported_dir / "1_Pooling" / "config.json")[OLDER_KEYS[mode]] is True


@pytest.mark.parametrize("mode", ["lasttoken", pytest.param("mean", marks=pytest.mark.slow)])
@pytest.mark.parametrize("config", BARE_DECODERS)
def test_vectors_of_language_models_without_head(config, mode, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    model = make(checkpoint, config, auto="AutoModel", **BARE_DECODERS[config])
    set_template(checkpoint, [1], [2])
    write_modules(checkpoint, {"pooling_mode": mode}, "Normalize")
    run_dir, exported_dir = round_trip(checkpoint)
    check_vectors((checkpoint, run_dir, exported_dir), model, mode, {"the red: ": "the red: "})
    assert_same_tensors(checkpoint, exported_dir)
    assert type(open_reference("AutoModel", exported_dir)) is type(model)
    for directory in (checkpoint, exported_dir):
        assert read_json(directory / "config.json")["architectures"] == [type(model).__name__]


@pytest.mark.parametrize("verb", ["generate", "score", "fill-mask", "classify", "translate", "eval"])
def test_verbs_refuse_model_without_head(verb, tmp_path, capsys):
    make(tmp_path / "checkpoint", "MistralConfig", auto="AutoModel", **BARE_DECODERS["MistralConfig"])
    (tmp_path / "text").write_text("the king\n")
    text = str(tmp_path / "text") if verb != "generate" else "the king"
    assert main([verb, str(tmp_path / "checkpoint"), text]) == 2
    error = capsys.readouterr().err
    assert error.startswith("polyhead: ") and error.count("\n") == 1
    assert error.endswith("use embed or attention\n") or verb in ("fill-mask", "eval")


@pytest.mark.parametrize("template", [([], []), ([], [2]), ([1], [])], ids=["none", "suffix", "prefix"])
def test_template_of_model_without_head(template, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    model = make(checkpoint, "MistralConfig", auto="AutoModel", **BARE_DECODERS["MistralConfig"])
    set_template(checkpoint, *template)
    write_modules(checkpoint, {"pooling_mode": "lasttoken"})
    run_dir, exported_dir = round_trip(checkpoint)
    ids = transformers.AutoTokenizer.from_pretrained(checkpoint)(TEXTS[0])["input_ids"]
    assert transformers.AutoTokenizer.from_pretrained(exported_dir)(TEXTS[0])["input_ids"] == ids
    expected = reference_vectors(model, checkpoint, "lasttoken", False)
    for directory in (checkpoint, run_dir, exported_dir):
        run = ph.load(directory)
        assert_close(run.embed(TEXTS), expected)
        assert run.attention_maps(TEXTS[0])["self"].weights.size(-1) == len(ids)
        assert run.attention_maps("")["self"].weights.size(-1) == 1


def test_prompts_precede_texts(tmp_path, capsys):
    checkpoint = tmp_path / "checkpoint"
    model = make_bert(checkpoint, {"pooling_mode": "mean"})
    write_json(checkpoint / PROMPT_FILE, QUERY_DEFAULT | {"similarity_fn_name": "cosine"})
    run_dir, exported_dir = round_trip(checkpoint)
    prompts = {"query": "the red: ", "document": ""}
    assert read_json(exported_dir / PROMPT_FILE) == {"prompts": prompts, "default_prompt_name": "query"}
    plain, queries, other = (
        reference_vectors(model, checkpoint, "mean", False, prompt)
        for prompt in ("", "the red: ", "one dog, ")
    )
    for directory in (checkpoint, run_dir, exported_dir):
        run = ph.load(directory)
        assert_close(run.embed(TEXTS), queries)
        for prompt, expected in {"query": queries, "document": plain, "": plain, "one dog, ": other}.items():
            assert_close(run.embed(TEXTS, embed_prompt=prompt), expected)
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    capsys.readouterr()
    embed = ["embed", str(run_dir), str(tmp_path / "texts"), "--prompt"]
    for options, vector in (([], plain[0]), (["--like-prompt", "query"], queries[0])):
        assert main([*embed, "document", "--like", TEXTS[0], *options]) == 0
        cosines = [float(line.split("\t")[0]) for line in capsys.readouterr().out.splitlines()]
        assert cosines == pytest.approx(torch.cosine_similarity(plain, vector[None]).tolist(), abs=1e-4)
    run = ph.load(checkpoint)
    run.generation = run.generation.model_copy(update={"embed_prompt": "a dog: "})
    unnamed_dir = export_run(run, tmp_path / "unnamed")
    config = read_json(unnamed_dir / PROMPT_FILE)
    assert config["prompts"]["a dog: "] == config["default_prompt_name"] == "a dog: "
    assert ph.load(unnamed_dir).generation.prompt_text == "a dog: "
    capsys.readouterr()
    for options, message in (
        (["document", "--like-prompt", "query"], "--like-prompt requires --like"),
        (["qurey"], "unknown prompt 'qurey'; did you mean 'query'? Known: document, query; a prompt itself"),
    ):
        assert main([*embed, *options]) == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("mode", POOLING)
def test_prompt_tokens_excluded_from_pooling(mode, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    model = make_bert(checkpoint, {"pooling_mode": mode, "include_prompt": False})
    write_json(checkpoint / PROMPT_FILE, QUERY_DEFAULT)
    run_dir, exported_dir = round_trip(checkpoint)
    assert read_json(exported_dir / "1_Pooling" / "config.json")["include_prompt"] is False
    prompt, plain = "the red: ", reference_vectors(model, checkpoint, mode, False)
    tokenizer, rows = transformers.AutoTokenizer.from_pretrained(checkpoint), []
    n_prompt = len(tokenizer(prompt)["input_ids"]) - 1  # without the end
    for text in TEXTS:
        with torch.no_grad():
            rows.append(model(**tokenizer(prompt + text, return_tensors="pt")).last_hidden_state[0])
    assert n_prompt > 3
    vectors_without_prompt, vectors_with_prompt = (
        torch.stack([POOLING[mode](x[start:]) for x in rows]) for start in (n_prompt, 0)
    )
    for directory in (checkpoint, run_dir, exported_dir):
        run = ph.load(directory)
        assert_close(run.embed(TEXTS), vectors_without_prompt)
        assert_close(run.embed(TEXTS[:1]), vectors_without_prompt[:1])
        assert_close(run.embed(TEXTS, include_prompt=True), vectors_with_prompt)
        assert_close(run.embed(TEXTS, embed_prompt=""), plain)


ACTIVATIONS = {"linear.Identity": lambda x: x, "activation.Tanh": torch.tanh}
ACTIVATIONS |= {"activation.GELU": torch.nn.functional.gelu}
ONE_MAP = [(16, 12, True, "activation.Tanh")]
TWO_MAPS = [(16, 40, False, "linear.Identity"), (40, 6, True, "activation.GELU")]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("maps", [ONE_MAP, TWO_MAPS], ids=["one", "two"])
def test_vectors_go_through_dense_maps(maps, normalize, tmp_path):
    checkpoint, modules = tmp_path / "checkpoint", ["Dense"] * len(maps) + ["Normalize"] * normalize
    model = make_bert(checkpoint, {"pooling_mode": "cls"}, *modules)
    layers, expected = write_dense(checkpoint, maps), reference_vectors(model, checkpoint, "cls", False)
    with torch.no_grad():
        for layer, (*_, activation) in zip(layers, maps, strict=True):
            expected = ACTIVATIONS[activation](layer(expected))
    expected = expected / expected.norm(dim=1, keepdim=True) if normalize else expected
    run_dir, exported_dir = round_trip(checkpoint)
    for directory in (checkpoint, run_dir, exported_dir):
        for fast in (False, True):
            assert_close(ph.load(directory, fast=fast).embed(TEXTS), expected, atol=1e-6)
    assert main(["embed", str(run_dir), TEXTS[0], "--output", str(tmp_path / "one.npy")]) == 0
    assert np.load(tmp_path / "one.npy").shape == (1, maps[-1][1])
    dense = [f"{i}_Dense" for i in range(2, 2 + len(maps))]
    for name in ("", *dense):
        assert_same_tensors(checkpoint / name, exported_dir / name)
    for file in ("modules.json", *(f"{name}/config.json" for name in dense)):
        assert read_json(checkpoint / file) == read_json(exported_dir / file)


def edit_map(**changes):
    return lambda directory: edit_json(directory / "2_Dense" / "config.json", **changes)


def reorder(*steps):
    """ColBERT has a map of the vectors of tokens."""

    def change(directory):
        modules = read_json(directory / "modules.json")
        write_json(directory / "modules.json", [modules[i] for i in steps])

    return change


OF_TOKENS = "2_Dense applies to token embeddings; only linear maps of the text"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit_map(in_features=12), "in_features is 12, expected 16, the only supported value"),
        (edit_map(use_residual=True), "use_residual is true, expected false"),
        (edit_map(module_input_name="token_embeddings"), "module_input_name is 'token_embeddings', expected"),
        (
            edit_map(activation_function="mine.Tanh"),
            "'mine.Tanh', expected one of Identity, Tanh, ReLU, GELU",
        ),
        (edit_map(out_features=7), r"with another shape: 2_Dense/linear.bias \[12\], expected \[7\]"),
        (edit_map(rank=7), "'rank' unknown"),
        (lambda directory: rename_as_pickle(directory / "2_Dense"), "has no 2_Dense/model.safetensors, only"),
        (reorder(0, 1, 3, 2), "Dense applies to normalized vectors"),
        (reorder(0, 2), OF_TOKENS),
        (reorder(0, 2, 1), OF_TOKENS),
    ],
)
def test_unsupported_dense_maps_are_refused(change, message, tmp_path):
    make_bert(tmp_path, {"pooling_mode": "mean"}, "Dense", "Normalize")
    write_dense(tmp_path, ONE_MAP)
    change(tmp_path)
    with pytest.raises(UserError, match=message):
        ph.load(tmp_path)


def test_dense_maps_are_of_vectors_alone(tmp_path, capsys):
    checkpoint = tmp_path / "checkpoint"
    make_bert(checkpoint, {"pooling_mode": "mean"}, "Dense")
    write_dense(checkpoint, ONE_MAP)
    run, _ = train_classifier(tmp_path)
    assert (len(ph.load(checkpoint).config.dense), run.config.dense, run.config.d_model) == (1, (), 16)
    for target in ("onnx", "ctranslate2"):
        capsys.readouterr()
        assert main(["export", str(checkpoint), str(tmp_path / "out"), "--to", target]) == 2
        assert "dense" in capsys.readouterr().err


@pytest.mark.parametrize(("pooling", "modules", "message"), REFUSALS["pooling"])
def test_unsupported_pooling_warns(pooling, modules, message, tmp_path, caplog):
    make_bert(tmp_path, pooling, *modules)
    with caplog.at_level(logging.WARNING):
        assert ph.load(tmp_path).generation.pooling == "mean"
        assert len(caplog.messages) == 1 and message in caplog.messages[0]
        caplog.clear()
        write_json(tmp_path / LENGTH_FILE, {"do_lower_case": True})
        ph.load(tmp_path)
        edit_json(tmp_path / "tokenizer.json", normalizer={"type": "Lowercase"})
        ph.load(tmp_path)
    warning = f"{LENGTH_FILE}: there texts are lowercased, here they are not"
    assert len([text for text in caplog.messages if warning in text]) == 1


@pytest.mark.acceptance("F6")
@pytest.mark.whole
@pytest.mark.parametrize(("file", "content", "message"), REFUSALS["sentence files"])
def test_damaged_files_are_refused(file, content, message, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    make_bert(checkpoint, {"pooling_mode": "cls"})
    (tmp_path / "other").mkdir()
    write_json(tmp_path / "other" / "config.json", {"pooling_mode": "max"})
    (checkpoint / file).write_text(content if content == "[" else json.dumps(content))
    if message is None:
        assert ph.load(checkpoint).generation.pooling == "mean"
    else:
        with pytest.raises(UserError, match=message):
            ph.load(checkpoint)
