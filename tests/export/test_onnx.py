import sys

import onnx
import pytest
import torch
from tests.export.conftest import (
    BASES,
    CONFIGS,
    TEXTS,
    Session,
    export_run,
    next_past,
    padded_batch,
    random_run,
)
from tests.export.onnx_helpers import LLAMA, assert_close, check_decoder_steps
from tests.export.onnx_helpers import language_model as language_model
from tests.export.onnx_helpers import translator as translator

import polyhead.export.onnx as onnx_export
import tokenizers
from polyhead.cli import main
from polyhead.core.extras import install_command

DECODERS, ENCODERS, TRANSLATORS = (
    CONFIGS[f"onnx_{name}"] for name in ("decoders", "encoders", "translators")
)
LARGER = LLAMA | {"d_model": 64, "d_ff": 128}


@torch.no_grad()
def check_encoder(run, directory):
    (tokens, mask, pos), session = padded_batch(), Session(directory / "model.onnx")
    feed, segments = {"input_ids": tokens, "attention_mask": mask}, None
    if run.config.n_segments:
        segments = feed["token_type_ids"] = tokens % 2
    assert feed.keys() == session.inputs.keys()
    outputs, expected = session(**feed), run.model(tokens, pos, segments)
    output, is_pooled = next(iter(outputs.values())), expected.dim() == 2
    selection = slice(None) if is_pooled else mask == 1
    assert_close(output[selection], expected[selection])
    if "pooler_output" in outputs:
        assert_close(outputs["pooler_output"], run.model.pooler(expected, pos))
    unpadded_output = next(iter(session(**{name: x[1:2, 2:] for name, x in feed.items()}).values()))
    assert_close(unpadded_output, output[1:2] if is_pooled else output[1:2, 2:])


@torch.no_grad()
def check_translator(run, directory):
    """The graphs of an encoder-decoder, in steps of several lengths, with padding in the source."""
    (source, mask, pos), target = padded_batch(), padded_batch(length=8)[0]
    encoder, decoder = (Session(directory / f"{side}_model.onnx") for side in ("encoder", "decoder"))
    expected = run.model(source, target, pos)
    states = next_past(encoder(input_ids=source, attention_mask=mask)) | decoder.empty_past(3, "decoder")
    for start, end in ((0, 1), (1, 2), (2, 6), (6, 8)):
        outputs = decoder(input_ids=target[:, start:end], encoder_attention_mask=mask, **states)
        states |= next_past(outputs)
        assert_close(outputs["logits"], expected[:, start:end])


def greedy_tokens(session, states, prompt, eos_id, max_len):
    output = []
    tokens, mask = prompt, torch.ones_like(prompt)
    while len(output) < max_len:
        inputs = {"input_ids": tokens}
        if "encoder_attention_mask" not in states:
            pos = mask.cumsum(1)[:, -tokens.size(1) :] - 1
            inputs |= {"attention_mask": mask, "position_ids": pos}
        outputs = session(**inputs, **states)
        states, tokens = states | next_past(outputs), outputs["logits"][:, -1:].argmax(-1)
        if int(tokens) == eos_id:
            break
        output, mask = [*output, int(tokens)], torch.cat([mask, torch.ones_like(tokens)], 1)
    return output


def relative_error(output, expected):
    return (output - expected).square().mean().sqrt() / expected.std()


@pytest.mark.slow
@torch.no_grad()
def test_int8_classifier_is_close(export_model):
    pooling = {"name": "first", "activation": "tanh"}
    config = {"kind": "encoder", "labels": ("a", "b", "c"), "pooling": pooling}
    run, directory = export_model("--to", "onnx", "--dtype", "int8", **config)
    tokens, mask, pos = padded_batch()
    logits = Session(directory / "model.onnx")(input_ids=tokens, attention_mask=mask)["logits"]
    assert 1e-5 < relative_error(logits, run.model(tokens, pos)) < 0.1
    weights = onnx.load(directory / "model.onnx").graph.initializer
    types = {one.data_type for one in weights if one.name.endswith("_quantized")}
    # signed ones overflow on processors without VNNI
    assert types == {onnx.TensorProto.UINT8}


def test_greedy_texts_and_verification(language_model):
    run, directory = language_model
    session = Session(directory / "model.onnx")
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    for text in TEXTS:
        prompt = torch.tensor([run.tokenizer.encode([text])[0]])
        tokens = greedy_tokens(session, session.empty_past(1), prompt, run.tokenizer.eos_id, 10)
        assert len(tokens) == 10
        # the text of a run ends with a complete character
        assert tokenizer.decode(tokens).rstrip("\ufffd") == run.generate([text])[0]
    content = (language_model[1] / "model.onnx").read_bytes()
    assert b".py" not in content and b"polyhead" not in content
    onnx_export._verify(run.model, 0, directory / "model.onnx", 1e-3)
    message = r"logits of model.onnx is off by 1\.\d+ of its standard deviation"
    with pytest.raises(ValueError, match=message):
        onnx_export._verify(random_run(seed=2, **LLAMA).model, 0, directory / "model.onnx", 1e-3)


@pytest.mark.slow
def test_greedy_translations_equal_run(translator):
    run, directory = translator
    encoder, decoder = (Session(directory / f"{side}_model.onnx") for side in ("encoder", "decoder"))
    template = run.tokenizer.seq2seq_template
    hypotheses = run.hypotheses(TEXTS, max_length_ratio=0, max_length_extra=12)
    for text, (best,) in zip(TEXTS, hypotheses, strict=True):
        source = torch.tensor([template.encoder_input(run.tokenizer.encode([text])[0])])
        mask = torch.ones_like(source)
        states = next_past(encoder(input_ids=source, attention_mask=mask)) | decoder.empty_past(1, "decoder")
        states["encoder_attention_mask"] = mask
        start = torch.tensor([[template.decoder_start_id]])
        assert greedy_tokens(decoder, states, start, template.eos_id, 12) == best.tokens
        assert len(best.tokens) > 5


def export_llama(directory, *options):
    random_run(**LLAMA).save(directory / "run")
    return main(["export", str(directory / "run"), str(directory / "out"), "--to", "onnx", *options])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "bf16"], "unknown dtype 'bf16'; did you mean 'fp16'? Known: fp16, fp32, int8"),
        (["--family", "gpt2"], "--family belongs to --to hf, not to onnx"),
        (["--shard-size", "1GB"], "--shard-size belongs to --to hf, not to onnx"),
    ],
)
def test_wrong_option_is_refused(options, message, tmp_path, capsys):
    assert export_llama(tmp_path, *options) == 2
    assert capsys.readouterr().err == f"polyhead: {message}\n" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["onnxruntime", "onnxscript"])
def test_missing_package_is_named(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "polyhead.export.onnx")
    assert export_llama(tmp_path) == 2
    assert f"this needs {name}: {install_command('export')}" in capsys.readouterr().err


ACTIVATIONS = ["relu", "relu2", "leaky_relu", "prelu", "silu", "tanh", "sigmoid", "glu", "reglu", "geglu"]
ACTIVATIONS += [{"name": "swiglu", "beta": beta} for beta in (1.702, "learned")]
ACTIVATIONS += [{"name": "prelu", "per_channel": True}]
COMPONENTS = [
    *((name, check_decoder_steps, {"kind": "decoder"} | parts) for name, parts in DECODERS.items()),
    *((name, check_encoder, {"kind": "encoder"} | parts) for name, parts in ENCODERS.items()),
    *((name, check_translator, parts) for name, parts in TRANSLATORS.items()),
    ("bert", check_encoder, BASES["onnx_bert"]),
    # the verification compares with the spread of the outputs, and one number has none
    ("one label", check_encoder, {"kind": "encoder", "labels": ("a",), "pooling": "first"}),
    ("translator", check_translator, {"n_kv_heads": 2, "v_head_dim": 5}),
    *((str(parts), check_encoder, {"kind": "encoder", "feed_forward": parts}) for parts in ACTIVATIONS),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "config"), [pytest.param(check, config, id=name) for name, check, config in COMPONENTS]
)
def test_graphs_of_components_equal_model(check, config, export_model):
    check(*export_model("--to", "onnx", **config))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp16", 0.01), ("int8", 0.05)])
@torch.no_grad()
def test_rounded_weights_are_close(dtype, tolerance, export_model):
    run, directory = export_model("--to", "onnx", "--dtype", dtype, **LARGER)
    (tokens, mask, pos), session = padded_batch(), Session(directory / "model.onnx")
    past = {name: x.half() if dtype == "fp16" else x for name, x in session.empty_past(3).items()}
    outputs = session(input_ids=tokens, attention_mask=mask, position_ids=pos.clamp(min=0), **past)
    selection = mask == 1
    error = relative_error(outputs["logits"][selection], run.model(tokens, pos)[selection])
    assert 1e-5 < error < tolerance
    fp32_dir = export_model("--to", "onnx", **LARGER)[1]
    size, fp32_size = ((path / "model.onnx").stat().st_size for path in (directory, fp32_dir))
    assert size < 0.8 * fp32_size


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_large_weights_have_their_own_file(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "MAX_GRAPH_BYTES", 10_000)
    run = random_run(**LARGER)
    directory = export_run(run, tmp_path, "--to", "onnx", "--dtype", dtype)
    sizes = {path.name: path.stat().st_size for path in directory.glob("model*")}
    assert sizes.keys() == {"model.onnx", "model.onnx.data"}
    assert sizes["model.onnx"] < sizes["model.onnx.data"]
    if dtype == "fp32":
        check_decoder_steps(run, directory)
    else:
        Session(directory / "model.onnx")
