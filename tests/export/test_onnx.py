"""ONNX graphs in onnxruntime against the model itself: logits, padding, steps, greedy texts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from tests.export.conftest import TEXTS, Session, kept, made, padded
from tests.export.onnx_helpers import LLAMA, close, goes_on_like_the_model
from tests.export.onnx_helpers import language as language
from tests.export.onnx_helpers import translator as translator
from torch import Tensor

import polyhead.export.onnx as writing
import tokenizers
from polyhead.cli import main
from polyhead.core.extras import install_command
from polyhead.run.run import Run

Make = Callable[..., tuple[Run, Path]]
Exported = tuple[Run, Path]

BERT = {
    "kind": "encoder",
    "position": "learned",
    "feed_forward": "gelu",
    "n_segments": 2,
    "embedding_norm": True,
}


@pytest.fixture(scope="module")
def encoder(make: Make) -> Exported:
    return make("--to", "onnx", **BERT)


@torch.no_grad()
def reads_like_the_model(run: Run, out: Path) -> None:
    """An encoder or classifier, with padding on either side."""
    (tokens, mask, pos), session = padded(), Session(out / "model.onnx")
    feed, segments = {"input_ids": tokens, "attention_mask": mask}, None
    if run.config.n_segments:
        segments = feed["token_type_ids"] = tokens % 2
    assert feed.keys() == session.inputs.keys()
    found, wanted = session(**feed), run.model(tokens, pos, segments)
    first = next(iter(found.values()))
    close(first, wanted) if wanted.dim() == 2 else close(first[mask == 1], wanted[mask == 1])
    if "pooler_output" in found:
        close(found["pooler_output"], run.model.pooler(wanted, pos))
    # alone and without padding a row says the same
    feed = {name: x[1:2, 2:] for name, x in feed.items()}
    alone = next(iter(session(**feed).values()))
    close(alone, first[1:2] if wanted.dim() == 2 else first[1:2, 2:])


@torch.no_grad()
def translates_like_the_model(run: Run, out: Path) -> None:
    """An encoder-decoder, its decoder in steps of several lengths, with padding in the source."""
    (source, mask, pos), target = padded(), padded(length=8)[0]
    encoder, decoder = (Session(out / f"{side}_model.onnx") for side in ("encoder", "decoder"))
    wanted = run.model(source, target, pos)
    read = encoder(input_ids=source, attention_mask=mask)
    feed = kept(read) | decoder.empty(3, "decoder")
    for begin, end in ((0, 1), (1, 2), (2, 6), (6, 8)):
        found = decoder(input_ids=target[:, begin:end], encoder_attention_mask=mask, **feed)
        feed |= kept(found)
        close(found["logits"], wanted[:, begin:end])


def greedy(session: Session, feed: dict[str, Tensor], first: Tensor, end: int, steps: int) -> list[int]:
    """The likeliest tokens until the end; ``feed`` is what does not change and what is remembered."""
    said: list[int] = []
    tokens, mask = first, torch.ones_like(first)
    while len(said) < steps:
        given = {"input_ids": tokens} | ({} if "encoder_attention_mask" in feed else {
            "attention_mask": mask, "position_ids": mask.cumsum(1)[:, -tokens.size(1):] - 1})  # fmt: skip
        found = session(**given, **feed)
        feed = feed | kept(found)
        tokens = found["logits"][:, -1:].argmax(-1)
        if int(tokens) == end:
            break
        said, mask = [*said, int(tokens)], torch.cat([mask, torch.ones_like(tokens)], 1)
    return said


def test_an_encoder_reads_like_the_model(encoder: Exported) -> None:
    reads_like_the_model(*encoder)


def test_a_classifier_of_one_label_reads_like_the_model(make: Make) -> None:
    """One number has no spread by which to tell how far another is from it."""
    reads_like_the_model(*make("--to", "onnx", kind="encoder", labels=("a",), pooling="first"))


@torch.no_grad()
def test_a_classifier_is_rounded(make: Make) -> None:
    settings = {
        "kind": "encoder",
        "labels": ("a", "b", "c"),
        "pooling": {"name": "first", "activation": "tanh"},
    }
    run, out = make("--to", "onnx", "--dtype", "int8", **settings)
    tokens, mask, pos = padded()
    found, wanted = (
        Session(out / "model.onnx")(input_ids=tokens, attention_mask=mask)["logits"],
        run.model(tokens, pos),
    )
    assert 1e-5 < (found - wanted).square().mean().sqrt() / wanted.std() < 0.1
    weights = [
        one for one in onnx.load(out / "model.onnx").graph.initializer if one.name.endswith("_quantized")
    ]
    # signed ones overflow on processors without VNNI
    assert weights and {one.data_type for one in weights} == {onnx.TensorProto.UINT8}


def test_a_translator_translates_like_the_model(translator: Exported) -> None:
    translates_like_the_model(*translator)


def test_greedy_continuations_are_those_of_the_run(language: Exported) -> None:
    run, out = language
    session, tokenizer = (
        Session(out / "model.onnx"),
        tokenizers.Tokenizer.from_file(str(out / "tokenizer.json")),
    )
    for text in TEXTS:
        prompt = torch.tensor([run.tokenizer.encode([text])[0]])
        said = greedy(session, session.empty(1), prompt, run.tokenizer.eos_id, 10)
        assert len(said) == 10
        # the text of a run ends with a whole character
        assert tokenizer.decode(said).rstrip("\ufffd") == run.generate([text])[0]


def test_greedy_translations_are_those_of_the_run(translator: Exported) -> None:
    run, out = translator
    encoder, decoder = (Session(out / f"{side}_model.onnx") for side in ("encoder", "decoder"))
    sides = run.tokenizer.seq2seq_template
    for text, (best,) in zip(
        TEXTS, run.hypotheses(TEXTS, max_length_ratio=0, max_length_extra=12), strict=True
    ):
        source = torch.tensor([sides.encoder_input(run.tokenizer.encode([text])[0])])
        mask = torch.ones_like(source)
        feed = kept(encoder(input_ids=source, attention_mask=mask)) | decoder.empty(1, "decoder")
        feed["encoder_attention_mask"] = mask
        assert (
            greedy(decoder, feed, torch.tensor([[sides.decoder_start_id]]), sides.eos_id, 12) == best.tokens
        )
        assert len(best.tokens) > 5


def test_a_graph_names_no_file_of_this_machine(language: Exported) -> None:
    content = (language[1] / "model.onnx").read_bytes()
    assert b".py" not in content and b"polyhead" not in content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "bf16"], "unknown dtype 'bf16'; did you mean 'fp16'? Known: fp16, fp32, int8"),
        (["--family", "gpt2"], "--family belongs to --to hf, not to onnx"),
        (["--shard-size", "1GB"], "--shard-size belongs to --to hf, not to onnx"),
    ],
)
def test_a_mistake_at_the_verb_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(**LLAMA).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "onnx", *arguments]) == 2
    assert capsys.readouterr().err == f"polyhead: {message}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["onnxruntime", "onnxscript"])
def test_without_the_extra_the_way_to_get_it_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(**LLAMA).save(tmp_path / "run")
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "polyhead.export.onnx")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "onnx"]) == 2
    assert f"this needs {name}: {install_command('export')}" in capsys.readouterr().err


def test_an_export_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(**LLAMA).save(tmp_path / "run")
    monkeypatch.setattr(writing, "trace_graph", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "onnx"]) == 130
    assert [x.name for x in tmp_path.iterdir()] == ["run"]


def test_what_is_written_is_proved_on_other_sizes(language: Exported) -> None:
    """A graph of other weights is not what the model says."""
    run, out = language
    writing._verify(run.model, 0, out / "model.onnx", 1e-3)
    with pytest.raises(ValueError, match=r"logits of model.onnx is off by 1\.\d+ of its standard deviation"):
        writing._verify(made(seed=2, **LLAMA).model, 0, out / "model.onnx", 1e-3)


DECODERS: dict[str, dict[str, Any]] = {
    "learned": {"position": {"name": "learned", "offset": 2}, "norm_first": True, "lm_head_bias": True},
    "alibi": {"position": "alibi", "n_heads": 6, "n_kv_heads": 3, "embedding_norm": True},
    "t5": {"position": {"name": "t5", "buckets": 4, "max_distance": 5}, "logits_scale": True,
        "norm": "rmsnorm"},
    "shaw": {"position": {"name": "shaw", "clip": 2}, "n_kv_heads": 1},
    "disentangled": {"position": {"name": "disentangled", "span": 4, "max_distance": 7}, "n_kv_heads": 2},
    "sinusoidal": {"position": {"name": "sinusoidal", "layout": "halves", "offset": 2},
        "tie_embeddings": "none"},
    "interleaved": {"position": {"name": "rope", "layout": "interleaved", "scaling": "yarn", "factor": 2.0,
                                 "original_len": 8}, "n_kv_heads": 2, "v_head_dim": 4},
    "part of rope": {"position": {"name": "rope", "fraction": 0.5}, "head_dim": 8, "block": "parallel",
        "norm_first": True},
    "window": {"position": "none", "attention": {"name": "softmax", "window": 3, "sink": 1, "softcap": 5.0,
                                                 "qk_norm": True, "tie": "kv", "scale": 0.3}},
    "in turn": {"n_layers": 2, "position": "rope", "layer_pattern": [{"attention": {"name": "softmax",
        "window": 2}},
                                                               {"position": "alibi"}]},
    "kernel": {"attention": {"name": "kernel", "sim": "square"}, "norm": "none"},
    "batchnorm": {"norm": "batchnorm", "feed_forward": {"name": "conv1x1", "activation": "prelu"}},
    "shared": {"share_layers": True, "n_layers": 3, "position": "rope"},
    "narrow embeddings": {"d_embedding": 10, "position": "learned"},
    "gemma": {"position": "rope", "norm": {"name": "rmsnorm", "zero_centered": True}, "norm_first": True,
              "sandwich_norm": True, "feed_forward": {"name": "geglu", "tanh": True}, "logit_softcap": 3.0},
    "gemma3": {"norm_first": True, "sandwich_norm": True, "position": "rope", "n_kv_heads": 1,
               "attention": {"name": "softmax", "qk_norm": "zero_centered"},
               "layer_pattern": [{"attention": {"name": "softmax", "qk_norm": "zero_centered", "window": 3},
                            "position": {"name": "rope", "theta": 100.0}}, {"position": "none"}]},
    "olmo2": {"norm": "rmsnorm", "norm_first": True, "sandwich_norm": "after", "position": "rope",
        "n_kv_heads": 2,
              "attention": {"name": "softmax", "qk_norm": "all_heads"}},
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "classifier": {"labels": ("a", "b", "c"), "pooling": "first", "position": "alibi"},
    "largest": {"labels": ("a", "b"), "pooling": "max", "position": "t5", "lm_head": False},
    "vectors": {"lm_head": False, "pooling": {"name": "mean", "activation": "tanh"}, "position": "rope"},
    "bare": {"lm_head": False, "attention": {"name": "softmax", "window": 2, "sink": 1}, "position": "shaw"},
    "deberta": {"labels": ("a", "b"), "position": {"name": "disentangled", "span": 6, "max_distance": 9}},
    "convolution": {"block": {"name": "gated_conv", "kernel": 3}, "labels": ("a", "b"), "pooling": "mean"},
    "shared": {"share_layers": True, "position": "t5", "labels": ("a", "b")},
    "narrow embeddings": {"d_embedding": 10, "position": "learned", "n_segments": 2, "embedding_norm": True},
    "linear": {"attention": "linear", "position": "rope"},
    "kernel": {"attention": {"name": "kernel", "sim": "elu"}},
}
TRANSLATORS: dict[str, dict[str, Any]] = {
    "t5": {"position": "t5", "norm": "rmsnorm", "norm_first": True, "feed_forward": "geglu"},
    "learned": {
        "position": "learned",
        "tie_embeddings": "inputs",
        "lm_head_bias": True,
        "embedding_norm": True,
    },
    "rope": {"position": "rope", "n_kv_heads": 1, "attention": {"name": "softmax", "qk_norm": True}},
    "alibi": {"position": "alibi", "cross_attention": "kernel"},
    "convolution": {
        "block": {"name": "gated_conv", "kernel": 3},
        "decoder_block": "transformer",
        "position": "learned",
    },
    "linear encoder": {"attention": "linear", "decoder_attention": "softmax", "cross_attention": "softmax"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_every_part_of_a_language_model(name: str, make: Make) -> None:
    goes_on_like_the_model(*make("--to", "onnx", **{"kind": "decoder"} | DECODERS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_every_part_of_an_encoder(name: str, make: Make) -> None:
    reads_like_the_model(*make("--to", "onnx", **{"kind": "encoder"} | ENCODERS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSLATORS)
def test_every_part_of_a_translator(name: str, make: Make) -> None:
    translates_like_the_model(*make("--to", "onnx", **TRANSLATORS[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "activation",
    [
        *("relu", "relu2", "leaky_relu", "prelu", "silu", "tanh", "glu", "reglu", "geglu"),
        {"name": "swiglu", "beta": 1.702},
        {"name": "swiglu", "beta": "learned"},
        {"name": "prelu", "per_channel": True},
    ],
    ids=str,
)
def test_every_feed_forward(activation: Any, make: Make) -> None:
    reads_like_the_model(*make("--to", "onnx", kind="encoder", feed_forward=activation))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "off"), [("fp16", 0.01), ("int8", 0.05)])
@torch.no_grad()
def test_rounded_weights_say_nearly_the_same(dtype: str, off: float, make: Make) -> None:
    run, out = make("--to", "onnx", "--dtype", dtype, **LLAMA | {"d_model": 64, "d_ff": 128})
    (tokens, mask, pos), session = padded(), Session(out / "model.onnx")
    past = {name: x.half() if dtype == "fp16" else x for name, x in session.empty(3).items()}
    found = session(input_ids=tokens, attention_mask=mask, position_ids=pos.clamp(min=0), **past)["logits"]
    wanted = run.model(tokens, pos)
    error = (found - wanted)[mask == 1].square().mean().sqrt() / wanted[mask == 1].std()
    assert 1e-5 < error < off
    whole = make("--to", "onnx", **LLAMA | {"d_model": 64, "d_ff": 128})[1]
    sizes = [(place / "model.onnx").stat().st_size for place in (out, whole)]
    assert sizes[0] < 0.8 * sizes[1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_weights_too_large_for_one_file_stand_in_another(
    dtype: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"d_model": 64, "d_ff": 128}
    wanted = made(**LLAMA | sizes)
    monkeypatch.setattr(writing, "MAX_GRAPH_BYTES", 10_000)
    out = make("--to", "onnx", "--dtype", dtype, **LLAMA | sizes)[1]
    files = {path.name for path in out.iterdir() if path.name.startswith("model")}
    assert files == {"model.onnx", "model.onnx.data"}
    assert (out / "model.onnx").stat().st_size < (out / "model.onnx.data").stat().st_size
    if dtype == "fp32":
        goes_on_like_the_model(wanted, out)
    else:
        Session(out / "model.onnx")


@pytest.mark.parametrize("shared", [False, True])
def test_weights_lie_as_they_are_multiplied(shared: bool) -> None:
    """A head that is tied to the embedding is there once, unless its own copy shall be rounded."""
    table, matrix = (
        np.random.default_rng(1).normal(size=size).astype(np.float32) for size in ((7, 4), (4, 4))
    )
    nodes = [
        onnx.helper.make_node("Gather", ["table", "ids"], ["x"]),
        onnx.helper.make_node("Transpose", ["matrix"], ["turned"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["x", "turned"], ["y"]),
        onnx.helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["y", "head"], ["logits"]),
    ]
    kinds = (("ids", onnx.TensorProto.INT64, ["n"]), ("logits", onnx.TensorProto.FLOAT, ["n", 7]))
    given, said = (onnx.helper.make_tensor_value_info(*kind) for kind in kinds)
    weights = [onnx.numpy_helper.from_array(x, name) for x, name in ((table, "table"), (matrix, "matrix"))]
    graph = onnx.helper.make_graph(nodes, "g", [given], [said], weights)
    versions = {"ir_version": 10, "opset_imports": [onnx.helper.make_opsetid("", 20)]}
    model = onnx_ir.from_proto(onnx.helper.make_model(graph, **versions))
    writing._transpose_weights(model.graph, shared)
    assert [node.op_type for node in model.graph].count("Transpose") == (0 if shared else 1)
    assert sorted(model.graph.initializers) == [
        "matrix.turned",
        "table",
        *(["table.turned"] if shared else []),
    ]
    found = onnxruntime.InferenceSession(onnx_ir.to_proto(model).SerializeToString()).run(
        None, {"ids": [2, 5]}
    )[0]
    np.testing.assert_allclose(found, table[[2, 5]] @ matrix.T @ table.T, rtol=1e-5)
