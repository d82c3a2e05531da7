"""Every number is the model's own: of five designs by their equations, of every part by a plain pass."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.explain.explain_helpers import TARGET, TEXT, PlainWalk, explain_walk, make_run, sinusoid
from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, POOLING, POSITION
from polyhead.explain.arrays import ArrayReader
from polyhead.explain.document import count_numbers, count_shown, explain
from polyhead.nn.stack import Stack
from polyhead.run.run import Run

DESIGNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GPT-2": (
        {
            "kind": "decoder",
            "norm_first": True,
            "position": "learned",
            "feed_forward": {"name": "gelu", "tanh": True},
            "tie_embeddings": "all",
        },
        {},
    ),
    "Vaswani et al.": ({"norm_first": False}, {}),
    "Llama": (
        {
            "kind": "decoder",
            "norm_first": True,
            "position": "rope",
            "norm": "rmsnorm",
            "n_kv_heads": 2,
            "feed_forward": "swiglu",
        },
        {"rope": True},
    ),
    "ALiBi and a window": (
        {
            "kind": "decoder",
            "norm_first": True,
            "position": "alibi",
            "attention": {"name": "softmax", "window": 3},
        },
        {"alibi": True, "window": 3},
    ),
    "masked encoder with T5 bias": ({"kind": "encoder", "position": "t5"}, {"t5": True}),
}


def close(name: str, got: Any, expected: Tensor) -> None:
    """To 1e-6 of the largest number of an array, or of 1."""
    reference = expected.detach().double().numpy()
    bound = 1e-6 * max(1.0, float(np.abs(reference).max()))
    assert np.asarray(got).shape == reference.shape, name
    assert np.abs(np.asarray(got) - reference).max() <= bound, name


def read_embedding(walk: PlainWalk, path: str, embedding: Any, ids: list[int]) -> Tensor:
    """Rows of the table, times sqrt(d) or not, plus positions."""
    rows = walk.keep(f"{path}.rows", embedding.token.weight[ids])
    x = walk.keep(f"{path}.scaled", rows * embedding.scale)
    if hasattr(embedding.position, "table"):
        added = sinusoid(len(ids), rows.size(1))
    elif hasattr(embedding.position, "offset"):
        added = embedding.position.weight[: len(ids)]
    else:
        return x
    return walk.keep(f"{path}.position.out", x + walk.keep(f"{path}.position.rows", added))


@torch.no_grad()
def walk_plainly(run: Run, document: dict[str, Any], walk: PlainWalk) -> Tensor:
    """The input of the head, and every number on the way in ``walk``."""
    model: Any = run.model
    ids = [[token["id"] for token in side["tokens"]] for side in document["sides"]]
    if len(ids) == 2:
        source = read_embedding(walk, "encoder_embedding", model.encoder_embedding, ids[0])
        memory = walk.stack("encoder", model.encoder, source)
        x = read_embedding(walk, "decoder_embedding", model.decoder_embedding, ids[1])
        return walk.stack("decoder", model.decoder, x, memory)
    path, inner = ("encoder.", model.encoder) if run.kind == "encoder" else ("", model)
    x = read_embedding(walk, f"{path}embedding", inner.embedding, ids[0])
    x = walk.stack(f"{path}stack", inner.stack, x)
    if run.kind != "encoder":
        return x
    x = walk.keep("transform.out", F.linear(x, model.transform.weight, model.transform.bias))
    return walk.norm("transform_norm", model.transform_norm, walk.keep("activation.out", F.gelu(x)))


@pytest.mark.parametrize("design", DESIGNS)
def test_every_number_is_that_of_the_equations(design: str) -> None:
    config, kinds = DESIGNS[design]
    run = make_run(**config)
    check_layers(run, explain_walk(run, TEXT, TARGET if "kind" not in config else None))
    run.model.double()  # so that two orders of summation do not differ
    document = json.loads(json.dumps(explain_walk(run, TEXT, TARGET if "kind" not in config else None)))
    walk, read = PlainWalk(**kinds), ArrayReader.from_document(document)
    head_input = walk_plainly(run, document, walk)
    for name, expected in walk.numbers.items():
        close(name, read(name), expected)
    assert len(walk.numbers) > 30
    recorded = {name for name, value in document["values"].items() if not name.endswith((".weight", ".bias"))}
    unchecked = {name.rpartition(".")[2] for name in recorded - walk.numbers.keys()}
    # the parameters of schemes, and the units of feed-forward layers, which have a test of their own
    assert unchecked <= {
        "unit",
        "pre",
        "act",
        "up",
        "hidden",
        "cos",
        "sin",
        "rate",
        "slopes",
        "table",
        "index",
    }

    ids = [torch.tensor([[token["id"] for token in side["tokens"]]]) for side in document["sides"]]
    with torch.inference_mode():
        logits = run.model(*ids)[0]
    (name,) = [step["in"] for step in document["walk"] if step["kind"] == "head"]
    close(name, read(name), head_input)
    for row, position in zip(logits, document["output"]["positions"], strict=True):
        best = row.topk(10)
        assert [token["id"] for token in position["top"]] == best.indices.tolist()
        close("logits", [token["logit"] for token in position["top"]], best.values)
        close("p", [token["p"] for token in position["top"]], row.softmax(-1)[best.indices])


def check_layers(run: Run, document: dict[str, Any]) -> None:
    """The input and output of each layer, and the output of the model, equal those of a plain pass."""
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _, args, out: seen.extend((args[0], out)))
        for part in run.model.modules()
        if isinstance(part, Stack)
        for layer in part.layers
    ]
    ids = [torch.tensor([[token["id"] for token in side["tokens"]]]) for side in document["sides"]]
    with torch.inference_mode():
        run.model(*ids)
    for hook in hooks:
        hook.remove()
    read, layers = ArrayReader.from_document(document), document["layers"]
    assert len(seen) == 2 * len(layers) > 0
    for i, layer in enumerate(layers):
        close(f"{layer['path']} in", read(layer["in"]), seen[2 * i][0])
        close(f"{layer['path']} out", read(layer["out"]), seen[2 * i + 1][0])
        assert layer["steps"][1] > layer["steps"][0]
    for name in document["values"]:
        assert list(read(name).shape) == document["values"][name]["shape"]
        assert np.isfinite(read(name)).all()


KINDS = {"decoder": None, "encoder": None, "encoder-decoder": TARGET}
PARTS = [
    (field, name, kind)
    for field, registry in {
        "attention": ATTENTION,
        "position": POSITION,
        "norm": NORM,
        "feed_forward": FEED_FORWARD,
        "block": BLOCK,
    }.items()
    for name in registry.names()
    for kind in KINDS
]


@pytest.mark.parametrize(("field", "name", "kind"), PARTS)
def test_every_registered_part_is_explained(field: str, name: str, kind: str) -> None:
    config: dict[str, Any] = {field: name}
    run = make_run(kind=kind, norm_first=True, **config)
    document = explain_walk(run, TEXT, KINDS[kind])
    check_layers(run, document)
    kinds = {step["kind"] for step in document["walk"]}
    assert "unknown" not in kinds
    if field == "feed_forward":
        assert kinds & {"feed_forward", "moe"}
    if field == "attention":
        assert kinds & {"attention", "linear_attention"}


@pytest.mark.parametrize(
    "config",
    [
        {"norm_first": True, "sandwich_norm": True},
        {"norm_first": True, "sandwich_norm": "after"},
        {"residual_scale": 0.3},
        {"share_layers": True},
        {"kind": "decoder", "d_embedding": 8},
        {"kind": "encoder", "d_embedding": 8, "embedding_norm": True},
        {"kind": "decoder", "block": {"name": "parallel", "one_norm": True}, "norm_first": True},
        {"kind": "decoder", "layer_pattern": [{"block": "lstm"}, {"position": "rope"}]},
        {"kind": "decoder", "attention": {"name": "softmax", "tie": "qkv", "qk_norm": True, "softcap": 5.0}},
        {"kind": "decoder", "attention": "linear", "position": "rope"},
        {"kind": "decoder", "attention": "kernel", "position": "rope", "n_kv_heads": 2},
        {"block": {"name": "gru", "units": 20}},
        {"kind": "encoder", "generator_layers": 1},
        {"kind": "encoder", "head_transform_activation": "gelu"},
    ],
    ids=str,
)
def test_every_layout_of_a_model_is_explained(config: dict[str, Any]) -> None:
    run = make_run(**config)
    document = explain_walk(run, TEXT, TARGET if "kind" not in config else None)
    if not config.get("share_layers"):
        check_layers(run, document)
    assert [layer["index"] for layer in document["layers"]] == [0, 1] * len(document["sides"])
    assert len({layer["path"] for layer in document["layers"]}) == len(document["layers"])


@pytest.mark.parametrize("name", POOLING.names())
def test_a_classifier_has_the_probabilities_of_its_classes(name: str) -> None:
    run = make_run(kind="encoder", labels=("yes", "no"), pooling=name, n_segments=2)
    document = explain_walk(run, TEXT, "a cat sleeps")
    (prediction,) = run.classify([(TEXT, "a cat sleeps")])
    classes = {one["label"]: one["p"] for one in document["output"]["classes"]}
    assert classes == pytest.approx(prediction.probabilities, abs=1e-6)
    assert {token["segment"] for token in document["sides"][0]["tokens"]} == {0, 1}
    assert document["walk"][-2]["kind"] == "pooling"


def test_a_sentence_encoder_has_its_vector() -> None:
    run = make_run(kind="encoder", lm_head=False, pooling="mean")
    document = explain_walk(run, TEXT)
    vector = run.embed([TEXT], pooling="own", normalize=False)[0]
    close("vector", document["output"]["vector"], vector)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(
    ("field", "part"),
    [
        ("norm", "ScaleNorm"),
        ("feed_forward", "SineLayer"),
        ("attention", "MeanAttention"),
        ("position", "ReversingPosition"),
        ("position", "RampPosition"),
    ],
)
def test_parts_of_another_package_are_explained(field: str, part: str, norm_first: bool, kind: str) -> None:
    config: dict[str, Any] = {field: f"tests.explain.plugin_helpers:{part}"}
    document = explain(make_run(kind=kind, norm_first=norm_first, **config), TEXT, KINDS[kind])
    check_layers(make_run(kind=kind, norm_first=norm_first, **config), document)
    steps = [step for step in document["walk"] if step["class"] == part]
    assert steps
    if part == "MeanAttention":
        assert {step["kind"] for step in steps} == {"unknown"}
        weights = ArrayReader.from_document(document)(steps[-1]["values"]["weights"])
        assert weights.sum(-1) == pytest.approx(np.ones(weights.shape[:-1]))
    if part == "ReversingPosition":
        attention = next(step for step in document["walk"] if step["kind"] == "attention")
        read = ArrayReader.from_document(document)
        q, q_raw = (read(attention["values"][role]) for role in ("q", "q_raw"))
        assert q[:, 1] == pytest.approx(-q_raw[:, 1], abs=1e-6)


class Doubling(nn.Module):
    """A block of nobody's kind."""

    state = None

    def __init__(self, config: Any, shape: Any, position: Any, cross: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return 2 * self.inner(x)


def test_an_unknown_block_is_shown_by_its_input_and_output() -> None:
    run = make_run(kind="decoder")
    model: Any = run.model
    model.stack.layers[1] = Doubling(run.config, None, None, False)
    document = explain(run, TEXT)
    check_layers(run, document)
    step = next(step for step in document["walk"] if step["class"] == "Doubling")
    assert (step["kind"], step["in"], step["out"]) == (
        "unknown",
        document["layers"][1]["in"],
        document["layers"][1]["out"],
    )


def test_levers_that_a_part_does_not_support_have_a_reason() -> None:
    """An attention that ignores its cache has no lever that reads the text through one."""
    config = {"attention": "tests.explain.plugin_helpers:ForgetfulAttention"}
    levers = {
        lever["name"]: lever
        for lever in explain(make_run(kind="decoder", **config), TEXT)["levers"]["levers"]
    }
    reason = levers["cache"]["reason"]
    assert reason["en"] == "attention of this model does not write to its cache"
    assert reason["zh"] == "这个模型的注意力不写入缓存"
    assert levers["cache"]["cases"] == []
    assert levers["layer"]["cases"]


@pytest.mark.parametrize(
    "config",
    [
        {"position": "alibi"},
        {"position": "rope", "n_kv_heads": 2},
        {"attention": "kernel", "position": "none"},
        {"position": "shaw"},
    ],
    ids=str,
)
def test_a_window_of_a_long_text_has_the_numbers_of_the_whole(config: dict[str, Any]) -> None:
    """Also weights and mixes, to which tokens that are not shown contribute."""
    run = make_run(kind="decoder", **config)
    whole = explain_walk(run, TEXT)
    n = len(whole["sides"][0]["tokens"])
    part = explain_walk(run, TEXT, first=3, n_shown=5)
    assert part["sides"][0]["window"] == [3, 8]
    assert len(part["sides"][0]["tokens"]) == n > 8
    read_all, read = ArrayReader.from_document(whole), ArrayReader.from_document(part)
    assert [p["position"] for p in part["output"]["positions"]] == [3, 4, 5, 6, 7]
    for layer in (0, 1):
        path = f"stack.layers.{layer}.attn"
        for role in ("weights", "q", "mix", "out"):
            expected = read_all(f"{path}.{role}")
            rows = expected[..., 3:8, :]
            close(
                role, read(f"{path}.{role}"), torch.from_numpy(rows[..., 3:8] if role == "weights" else rows)
            )


def test_windows_of_both_texts_cut_the_memory_too() -> None:
    run = make_run()
    whole, part = explain_walk(run, TEXT, TARGET), explain_walk(run, TEXT, TARGET, n_shown=4)
    read_all, read = ArrayReader.from_document(whole), ArrayReader.from_document(part)
    path = "decoder.layers.1.cross"
    close("weights", read(f"{path}.weights"), torch.from_numpy(read_all(f"{path}.weights")[:, :4, :4]))
    close("mix", read(f"{path}.mix"), torch.from_numpy(read_all(f"{path}.mix")[:, :4]))


def test_the_end_of_a_long_text_is_shown_of_a_language_model_alone() -> None:
    text = explain_walk(make_run(kind="decoder"), TEXT, n_shown=4)
    n = len(text["sides"][0]["tokens"])
    assert text["sides"][0]["window"] == [n - 4, n]
    assert explain_walk(make_run(kind="encoder"), TEXT, n_shown=4)["sides"][0]["window"] == [0, 4]


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "encoder-decoder", "d_model": 512, "n_layers": 6},
        {"kind": "decoder", "d_model": 768, "n_layers": 12, "n_heads": 12},
        {"kind": "encoder", "d_model": 512, "n_layers": 12},
        {"kind": "encoder", "d_model": 512, "n_layers": 6, "position": "disentangled"},
        {"kind": "decoder", "d_model": 512, "n_layers": 6, "feed_forward": "moe"},
        {"kind": "decoder", "d_model": 512, "n_layers": 6, "block": "lstm"},
    ],
    ids=str,
)
def test_models_of_base_size_show_twenty_tokens(config: dict[str, Any]) -> None:
    model = ModelConfig(vocab_size=32_000, **config)
    assert count_shown(model, 20) >= 20
    assert 12 <= count_shown(model, 100) <= count_shown(model, 20)
    # of a long text, attention has numbers for the tokens that are not shown
    assert (count_shown(model, 100) < count_shown(model, 20)) == (model.block.name != "lstm")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"kind": "encoder", "position": "disentangled"},
        {"kind": "decoder", "feed_forward": {"name": "moe", "top_k": 3}},
        {"kind": "decoder", "position": "alibi"},
        {"block": "lstm", "position": "none"},
        {"kind": "decoder", "block": {"name": "gru", "units": 48}},
        {"kind": "encoder", "block": "rnn"},
    ],
    ids=str,
)
def test_the_numbers_that_are_stored_are_counted(config: dict[str, Any]) -> None:
    """Those of the layers, without vectors of weights."""
    run = make_run(**config, d_ff=32, d_model=128)
    for options in ({}, {"first": 2, "n_shown": 8}):
        document = explain_walk(run, TEXT, TARGET if run.kind == "encoder-decoder" else None, **options)
        n = max(stop - first for first, stop in (side["window"] for side in document["sides"]))
        stored = sum(
            math.prod(value["shape"])
            for name, value in document["values"].items()
            if "at" in value and ".layers." in name and len(value["shape"]) > 1
        )
        counted = count_numbers(run.config, n, is_cut=bool(options))
        assert 0.7 * counted < stored < 1.1 * counted, (stored, counted)


def test_what_cannot_be_explained_is_an_error() -> None:
    with pytest.raises(UserError, match="takes one text"):
        explain_walk(make_run(kind="decoder"), TEXT, TARGET)
    with pytest.raises(UserError, match=r"has [0-9]+ tokens; the model's maximum is 64"):
        explain_walk(make_run(kind="decoder"), TEXT * 9)
