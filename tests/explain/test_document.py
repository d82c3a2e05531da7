import json
import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.explain import explain_helpers as helpers
from tests.hf.conftest import make
from torch import nn

from polyhead.config.data_config import DataConfig
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import ATTENTION, BLOCK, FEED_FORWARD, NORM, POOLING, POSITION
from polyhead.explain.document import count_numbers, count_shown, describe_training_text, explain
from polyhead.nn.stack import Stack
from polyhead.run.load import load

KINDS = {"decoder": None, "encoder": None, "encoder-decoder": helpers.TARGET}
REGISTRIES = {registry.kind: registry for registry in (ATTENTION, POSITION, NORM, FEED_FORWARD, BLOCK)}
# the parameters of schemes, and the units of feed-forward layers, which have tests of their own
NOT_IN_WALK = {"unit", "pre", "act", "up", "hidden", "counts", "curve"}
NOT_IN_WALK |= {"cos", "sin", "rate", "slopes", "table", "index", "shares"}


@pytest.mark.parametrize("design", helpers.DESIGNS)
def test_numbers_match_equations(design):
    config, options = helpers.DESIGNS[design]
    run = helpers.make_run(**config)
    target = KINDS[run.kind]
    check_layers(run, helpers.explain_walk(run, helpers.TEXT, target))
    run.model.double()  # so that two orders of summation do not differ
    document = json.loads(json.dumps(helpers.explain_walk(run, helpers.TEXT, target)))
    walk, read = helpers.ReferenceWalk(**options), helpers.read_document(document)
    head_input = helpers.walk_model(run, document, walk)
    for name, expected in walk.arrays.items():
        helpers.check_close(read(name), expected)
    assert len(walk.arrays) > 30
    names = {name for name in document["values"] if not name.endswith((".weight", "bias"))}
    assert {name.rpartition(".")[2] for name in names - walk.arrays.keys()} <= NOT_IN_WALK

    with torch.inference_mode():
        logits = run.model(*helpers.make_inputs(document))[0]
    (head,) = helpers.list_steps(document, "head")
    helpers.check_close(read(head["in"]), head_input)
    for row, position in zip(logits, document["output"]["positions"], strict=True):
        best = row.topk(10)
        assert [token["id"] for token in position["top"]] == best.indices.tolist()
        helpers.check_close([token["logit"] for token in position["top"]], best.values)
        helpers.check_close([token["p"] for token in position["top"]], row.softmax(-1)[best.indices])


def check_layers(run, document):
    states = []
    layers = [layer for part in run.model.modules() if isinstance(part, Stack) for layer in part.layers]
    hooks = [x.register_forward_hook(lambda _, args, out: states.extend((args[0], out))) for x in layers]
    with torch.inference_mode():
        run.model(*helpers.make_inputs(document))
    for hook in hooks:
        hook.remove()
    read, layers = helpers.read_document(document), document["layers"]
    assert len(states) == 2 * len(layers) > 0
    for i, layer in enumerate(layers):
        helpers.check_close(read(layer["in"]), states[2 * i][0])
        helpers.check_close(read(layer["out"]), states[2 * i + 1][0])
        assert layer["steps"][1] > layer["steps"][0]
    for name, value in document["values"].items():
        assert list(read(name).shape) == value["shape"]
        assert np.isfinite(read(name)).all()


@pytest.mark.parametrize(
    ("field", "name", "kind"),
    [(f, name, kind) for f, r in REGISTRIES.items() for name in r.names() for kind in KINDS],
)
def test_every_registered_part_is_explained(field, name, kind):
    run = helpers.make_run(kind=kind, norm_first=True, **{field: name})
    document = helpers.explain_walk(run, helpers.TEXT, KINDS[kind])
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
def test_every_layout_of_model_is_explained(config):
    run = helpers.make_run(**config)
    document = helpers.explain_walk(run, helpers.TEXT, KINDS[run.kind])
    if not config.get("share_layers"):
        check_layers(run, document)
    assert [layer["index"] for layer in document["layers"]] == [0, 1] * len(document["sides"])
    assert len({layer["path"] for layer in document["layers"]}) == len(document["layers"])


@pytest.mark.parametrize("name", POOLING.names())
def test_classes_and_vector_match_classify_and_embed(name):
    run = helpers.make_run(kind="encoder", labels=("yes", "no"), pooling=name, n_segments=2)
    document = helpers.explain_walk(run, helpers.TEXT, "a cat sleeps")
    (prediction,) = run.classify([(helpers.TEXT, "a cat sleeps")])
    classes = {one["label"]: one["p"] for one in document["output"]["classes"]}
    assert classes == pytest.approx(prediction.probabilities, abs=1e-6)
    assert {token["segment"] for token in document["sides"][0]["tokens"]} == {0, 1}
    assert document["walk"][-2]["kind"] == "pooling"
    encoder = helpers.make_run(kind="encoder", lm_head=False, pooling=name)
    vector = encoder.embed([helpers.TEXT], pooling="own", normalize=False)[0]
    helpers.check_close(helpers.explain_walk(encoder)["output"]["vector"], vector)


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
def test_user_defined_part_is_explained(field, part, norm_first, kind):
    run = helpers.make_run(
        kind=kind, norm_first=norm_first, **{field: f"tests.explain.plugin_helpers:{part}"}
    )
    document = explain(run, helpers.TEXT, KINDS[kind])
    check_layers(run, document)
    steps = [step for step in document["walk"] if step["class"] == part]
    assert steps
    read = helpers.read_document(document)
    if part == "MeanAttention":
        assert {step["kind"] for step in steps} == {"unknown"}
        weights = read(steps[-1]["values"]["weights"])
        assert weights.sum(-1) == pytest.approx(np.ones(weights.shape[:-1]))
    if part == "ReversingPosition":
        values = helpers.list_steps(document, "attention")[0]["values"]
        assert read(values["q"])[:, 1] == pytest.approx(-read(values["q_raw"])[:, 1], abs=1e-6)


class Doubling(nn.Module):
    state = None

    def __init__(self, d_model):
        super().__init__()
        self.inner = nn.Linear(d_model, d_model)

    def forward(self, x, *rest):
        return 2 * self.inner(x)


def test_unknown_block_has_input_and_output():
    run = helpers.make_run(kind="decoder")
    run.model.stack.layers[1] = Doubling(run.config.d_model)
    document = explain(run, helpers.TEXT)
    check_layers(run, document)
    (step,) = [step for step in document["walk"] if step["class"] == "Doubling"]
    layer = document["layers"][1]
    assert (step["kind"], step["in"], step["out"]) == ("unknown", layer["in"], layer["out"])


def test_unsupported_lever_has_reason():
    """An attention that ignores its cache has no lever that reads the text through one."""
    run = helpers.make_run(kind="decoder", attention="tests.explain.plugin_helpers:ForgetfulAttention")
    states = []
    document = explain(run, helpers.TEXT, progress=states.append)
    levers = {lever["name"]: lever for lever in document["levers"]["levers"]}
    assert states == [*(f"lever {i} of {len(levers)}: {name}" for i, name in enumerate(levers, 1)), ""]
    assert levers["cache"]["reason"]["en"] == "attention of this model does not write to its cache"
    assert levers["cache"]["cases"] == []
    assert levers["layer"]["cases"]


WINDOW_CONFIGS = [{"position": "alibi"}, {"position": "rope", "n_kv_heads": 2}, {"position": "shaw"}]
WINDOW_CONFIGS.append({"attention": "kernel", "position": "none"})


@pytest.mark.parametrize("config", WINDOW_CONFIGS, ids=str)
def test_window_of_text_has_same_numbers(config):
    """Also weights and mixes, to which tokens outside of the window contribute."""
    document, read = helpers.explain_config({"kind": "decoder", **config})
    window, read_window = helpers.explain_config({"kind": "decoder", **config}, first=3, n_shown=5)
    assert window["sides"][0]["window"] == [3, 8]
    assert len(window["sides"][0]["tokens"]) == len(document["sides"][0]["tokens"]) > 8
    assert [p["position"] for p in window["output"]["positions"]] == [3, 4, 5, 6, 7]
    for layer, role in product((0, 1), ("weights", "q", "mix", "out")):
        name = f"stack.layers.{layer}.attn.{role}"
        expected = read(name)[..., 3:8, :]
        helpers.check_close(read_window(name), expected[..., 3:8] if role == "weights" else expected)


def test_windows_of_both_texts_cut_memory():
    (_, read), (_, read_window) = helpers.explain_config({}), helpers.explain_config({}, n_shown=4)
    path = "decoder.layers.1.cross"
    helpers.check_close(read_window(f"{path}.weights"), read(f"{path}.weights")[:, :4, :4])
    helpers.check_close(read_window(f"{path}.mix"), read(f"{path}.mix")[:, :4])
    # the default is the end only for a language model
    side = helpers.explain_config({"kind": "decoder"}, n_shown=4)[0]["sides"][0]
    n = len(side["tokens"])
    assert side["window"] == [n - 4, n]
    assert helpers.explain_config({"kind": "encoder"}, n_shown=4)[0]["sides"][0]["window"] == [0, 4]


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
def test_base_size_model_shows_twenty_tokens(config):
    model = ModelConfig(vocab_size=32_000, **config)
    assert count_shown(model, 20) >= 20
    assert 12 <= count_shown(model, 100) <= count_shown(model, 20)
    # attention has numbers for tokens outside of the window of a long text
    assert (count_shown(model, 100) < count_shown(model, 20)) == (model.block.name != "lstm")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"kind": "encoder", "position": "disentangled"},
        {"kind": "decoder", "feed_forward": {"name": "moe", "top_k": 3}},
        {"kind": "decoder", "block": {"name": "gru", "units": 48}},
        pytest.param({"kind": "decoder", "position": "alibi"}, marks=pytest.mark.slow),
        pytest.param({"block": "lstm", "position": "none"}, marks=pytest.mark.slow),
        pytest.param({"kind": "encoder", "block": "rnn"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_count_numbers_estimates_stored_numbers(config):
    """Those of the layers, without vectors of weights."""
    run = helpers.make_run(**config, d_ff=32, d_model=128)
    for options in ({}, {"first": 2, "n_shown": 8}):
        document = helpers.explain_walk(run, helpers.TEXT, KINDS[run.kind], **options)
        n = max(stop - first for first, stop in (side["window"] for side in document["sides"]))
        n_stored = sum(
            math.prod(value["shape"])
            for name, value in document["values"].items()
            if "at" in value and ".layers." in name and len(value["shape"]) > 1
        )
        estimate = count_numbers(run.config, n, is_cut=bool(options))
        assert 0.7 * estimate < n_stored < 1.1 * estimate


def test_invalid_inputs_are_errors():
    run = helpers.make_run(kind="decoder")
    with pytest.raises(UserError, match="takes one text"):
        helpers.explain_walk(run, helpers.TEXT, helpers.TARGET)
    with pytest.raises(UserError, match=r"has [0-9]+ tokens; the model's maximum is 64"):
        helpers.explain_walk(run, helpers.TEXT * 9)


def test_published_checkpoint_has_family(tmp_path):
    make(tmp_path, "GPT2Config", n_embd=16, n_layer=2, n_head=2, n_positions=32)
    assert helpers.explain_walk(load(tmp_path, device="cpu"), "a dog barks")["run"]["family"] == "gpt2"


def test_training_text_is_that_of_files(tmp_path):
    run = helpers.make_run()
    assert describe_training_text(run) == {"languages": None, "examples": (0, "")}
    run.directory = tmp_path
    data = DataConfig(train=["t/train.en", "t/train.de"], source_lang="en", target_lang="de")
    run.recipe = SimpleNamespace(data=data)
    stores = {
        "pairs-a": {"total": 4100, "used": 4000, "source_label": "train.en + train.de"},
        "pairs-b": {"used": 200, "source_label": "valid.en + valid.de"},
        "pairs-c": {},
        "pairs-e": {"used": 9000, "source_label": "other.en + other.de"},
        "text-d": {"lines": 7, "source_label": "train"},
    }
    for name, report in stores.items():
        path = tmp_path / "data" / name / "store.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"report": report}))
    assert describe_training_text(run) == {"languages": ["en", "de"], "examples": (4000, "pairs")}
