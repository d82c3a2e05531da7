import json
import sys

import ctranslate2
import numpy as np
import pytest
import torch
from tests.export.conftest import BASES, CONFIGS, TEXTS, VOCABULARY, export_run, padded_batch, random_run

import polyhead.export.ctranslate2 as ct2_export
import tokenizers
from polyhead.cli import main
from polyhead.core.extras import install_command

LLAMA = BASES["ct2_llama"]
DECODERS, ENCODERS = CONFIGS["ct2_decoders"], CONFIGS["ct2_encoders"]
TRANSLATORS = CONFIGS["ct2_translators"]


def assert_close(actual, expected):
    torch.testing.assert_close(torch.from_numpy(np.array(actual)), expected, rtol=1e-4, atol=1e-5)


def read_vocabulary(directory, file="vocabulary.json"):
    return json.loads((directory / file).read_text())


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_language_model_equals_run(name, export_model):
    run, directory = export_model("--to", "ctranslate2", **{"kind": "decoder"} | DECODERS[name])
    generator, tokens = ctranslate2.Generator(str(directory)), padded_batch()[0]
    logits = np.array(generator.forward_batch([tokens[0].tolist(), tokens[1, :4].tolist()]))
    assert_close(logits[0], run.model(tokens[:1])[0])
    assert_close(logits[1, :4], run.model(tokens[1:2, :4])[0])
    # token by token, after prompts of several lengths
    vocabulary = read_vocabulary(directory)
    prompts = [[vocabulary[i] for i in prompt] for prompt in run.tokenizer.encode(TEXTS)]
    results = generator.generate_batch(prompts, max_length=12, include_prompt_in_result=False)
    hypotheses = run.hypotheses(TEXTS, beam_size=1, max_new_tokens=12)
    assert [result.sequences_ids[0] for result in results] == [best.tokens for (best,) in hypotheses]
    assert sum(len(best.tokens) for (best,) in hypotheses) > 20


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translator_equals_run(name, export_model):
    run, directory = export_model("--to", "ctranslate2", **TRANSLATORS[name])
    translator = ctranslate2.Translator(str(directory))
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    targets = [*TEXTS[1:], TEXTS[0]]
    source_tokens = [tokenizer.encode(text).tokens for text in TEXTS]
    target_tokens = [tokenizer.encode(text, add_special_tokens=False).tokens for text in targets]
    results = translator.score_batch(source_tokens, target_tokens)
    for score, result in zip(run.score(TEXTS, targets), results, strict=True):
        assert sum(result.log_probs) == pytest.approx(score.log_prob, rel=1e-5)
    limit = {"max_length_ratio": 0, "max_length_extra": 12}
    for beam in (1, 3):
        # with a length penalty of 1 both search all lengths, so that their rules of stopping do not matter
        search = {"beam_size": beam, "num_hypotheses": beam, "return_scores": True, "length_penalty": 1.0}
        results = translator.translate_batch(source_tokens, max_decoding_length=12, **search)
        hypotheses = run.hypotheses(TEXTS, beam_size=beam, n_best=beam, length_penalty=1.0, **limit)
        for result, best in zip(results, hypotheses, strict=True):
            ids = [[tokenizer.token_to_id(token) for token in tokens] for tokens in result.hypotheses]
            assert ids == [hypothesis.tokens for hypothesis in best]
            # log-probabilities of searches are rounded more than those of score_batch, by 1e-4
            assert result.scores == pytest.approx([hypothesis.score for hypothesis in best], rel=5e-4)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_encoder_equals_run(name, export_model):
    run, directory = export_model("--to", "ctranslate2", **{"kind": "encoder"} | ENCODERS[name])
    tokens = padded_batch()[0]
    segments = tokens % 2 if run.config.n_segments else None
    lengths = {0: 7, 1: 4}
    rows, segment_rows = (
        None if x is None else [x[i, :n].tolist() for i, n in lengths.items()] for x in (tokens, segments)
    )
    outputs = ctranslate2.Encoder(str(directory)).forward_batch(rows, token_type_ids=segment_rows)
    for i, n in lengths.items():
        segment_row = None if segments is None else segments[i : i + 1, :n]
        expected = run.model.encoder(tokens[i : i + 1, :n], None, segment_row)
        assert_close(np.array(outputs.last_hidden_state)[i, :n], expected[0])
        if name in ("classifier", "pooled"):
            assert_close(np.array(outputs.pooler_output)[i], run.model.pooler(expected)[0])
        else:
            assert outputs.pooler_output is None


def test_vocabulary_roles_and_rows_without_token(export_model, tmp_path):
    run, directory = export_model("--to", "ctranslate2", **LLAMA, kind="decoder")
    assert read_vocabulary(directory) == run.tokenizer.ids_to_tokens(range(VOCABULARY))
    config = json.loads((directory / "config.json").read_text())
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert config["layer_norm_epsilon"] == 1e-6
    run, directory = export_model("--to", "ctranslate2")
    vocabulary = read_vocabulary(directory, "shared_vocabulary.json")
    assert vocabulary == run.tokenizer.ids_to_tokens(range(VOCABULARY))
    config = json.loads((directory / "config.json").read_text())
    assert config["decoder_start_token"] == vocabulary[run.tokenizer.seq2seq_template.decoder_start_id]
    assert (directory / "tokenizer_config.json").is_file()
    run = random_run(kind="decoder", **LLAMA)
    config = run.config.model_copy(update={"vocab_size": VOCABULARY + 3})
    run.model = type(run.model)(config).eval()
    directory = export_run(run, tmp_path, "--to", "ctranslate2")
    assert read_vocabulary(directory)[VOCABULARY:] == ["<beyond 290>", "<beyond 291>", "<beyond 292>"]
    logits = ctranslate2.Generator(str(directory)).forward_batch([[7, 8]])
    with torch.no_grad():
        assert_close(logits, run.model(torch.tensor([[7, 8]])))


DTYPES = [("fp16", 0.003), ("bf16", 0.02), ("int8", 0.04), ("int8_float32", 0.04)]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@torch.no_grad()
def test_rounded_weights_are_close(dtype, tolerance, export_model, tmp_path):
    config = LLAMA | {"d_model": 64, "d_ff": 128, "kind": "decoder"}
    run, directory = export_model("--to", "ctranslate2", "--dtype", dtype, **config)
    weights = {name: x.clone() for name, x in run.model.state_dict().items()}
    ct2_export.write_ct2(run.model, run.tokenizer, tmp_path, dtype)
    assert all(torch.equal(weights[name], x) for name, x in run.model.state_dict().items())
    fp32_dir = export_model("--to", "ctranslate2", **config)[1]
    size, fp32_size = ((path / "model.bin").stat().st_size for path in (directory, fp32_dir))
    assert size < (0.3 if "int8" in dtype else 0.55) * fp32_size
    tokens, expected = padded_batch()[0], run.model(padded_batch()[0])
    # in int8 its sums saturate on processors without an instruction for them
    generator = ctranslate2.Generator(str(directory), compute_type="float32")
    output = generator.forward_batch(tokens.tolist())
    error = (torch.from_numpy(np.array(output)) - expected).square().mean().sqrt() / expected.std()
    assert 1e-6 < error < tolerance


def test_unknown_dtype_and_missing_package_are_named(tmp_path, capsys, monkeypatch):
    random_run(**LLAMA).save(tmp_path / "run")
    options = ["--to", "ctranslate2", "--dtype", "int9"]
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), *options]) == 2
    assert "unknown dtype 'int9'; did you mean 'int8'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "polyhead.export.ctranslate2")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "ctranslate2"]) == 2
    assert f"this needs ctranslate2: {install_command('export')}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bert", "classifier", "mean"])
def test_output_layer_that_is_left_out_is_named(name, tmp_path, capsys):
    random_run(**{"kind": "encoder"} | ENCODERS[name]).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "ctranslate2"]) == 0
    assert ("; without its output layer" in capsys.readouterr().out) == (name != "mean")
