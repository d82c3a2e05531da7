"""The weights of a changed model, against softmax in NumPy on what its projections return."""

import copy

import numpy as np
import pytest
import torch
from tests.explain.explain_helpers import TARGET, TEXT, make_run, read_document
from tests.explain.levers.levers_helpers import make_input, make_model

from polyhead.core.errors import UserError
from polyhead.explain.arrays import ArrayStore
from polyhead.explain.document import explain
from polyhead.explain.levers import attention_change
from polyhead.explain.levers.attention_change import MAP_LEVERS, MapStore
from polyhead.explain.levers.table import compute_case
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.kv import Window

POSITION = {"position": "learned"}
CASES = [
    ("decoder", POSITION, "scale", {"scale": 0.9}),
    ("decoder", POSITION, "causal_mask", {}),
    ("decoder", POSITION, "positions", {}),
    ("decoder", POSITION, "head", {"stack": "stack", "attention": "self", "layer": 0, "head": 2}),
    ("decoder", POSITION, "kv_heads", {"n_kv_heads": 2}),
    ("decoder", POSITION, "cache", {"cache": {"name": "window", "window": 3, "sink": 0}}),
    ("decoder", POSITION | {"share_layers": True, "n_layers": 3}, "head", {"layer": 1, "head": 2}),
    (
        "decoder",
        POSITION | {"share_layers": True},
        "cache",
        {"cache": {"name": "window", "window": 4, "sink": 1}},
    ),
    ("encoder-decoder", POSITION, "scale", {"scale": 0.9}),
    ("encoder-decoder", POSITION, "head", {"stack": "decoder", "attention": "cross", "layer": 0, "head": 1}),
    ("encoder-decoder", POSITION, "head", {"stack": "encoder", "attention": "self", "layer": 1, "head": 0}),
    ("encoder-decoder", POSITION, "cache", {"cache": {"name": "window", "window": 4, "sink": 1}}),
    ("encoder", POSITION, "kv_heads", {"n_kv_heads": 1}),
]


@torch.no_grad()
def change_model(model, name, setting):
    """A copy with the change written into its weights or attributes."""
    model = copy.deepcopy(model)
    attentions = [part for part in model.modules() if isinstance(part, Attention)]
    for attention in attentions:
        if name == "scale":
            attention.scale = setting["scale"]
        elif name == "causal_mask":
            attention.causal = False
        elif name == "cache" and attention.causal:
            attention.window = Window(setting["cache"]["window"], setting["cache"]["sink"])
        elif name == "kv_heads":
            for p in (*attention.k_proj.parameters(), *attention.v_proj.parameters()):
                groups = p.unflatten(0, (setting["n_kv_heads"], -1, attention.head_dim)).mean(1, keepdim=True)
                n_heads = len(p) // attention.head_dim // setting["n_kv_heads"]
                p.copy_(groups.expand(-1, n_heads, *groups.shape[2:]).flatten(0, 2))
    if name == "positions":
        for part in model.modules():
            if hasattr(part, "position") and hasattr(part.position, "weight"):
                part.position.weight.zero_()
    if name == "head":
        stack = {"decoder": model, "encoder-decoder": model, "encoder": getattr(model, "encoder", None)}
        layers = getattr(stack[model.config.kind], setting.get("stack", "stack")).layers
        layers[setting["layer"]] = layer = copy.deepcopy(layers[setting["layer"]])
        attention = layer.cross if setting.get("attention") == "cross" else layer.attn
        start = setting["head"] * attention.v_head_dim
        attention.o_proj.weight[:, start : start + attention.v_head_dim] = 0
    return model


def compute_softmax(model, lever_input):
    """The weights of every attention by path, in float64, from what the projections return."""
    weights, handles, done = {}, [], set()

    def watch(stack_path, role, attention, side):
        def note(module, args, out):
            of_side = [one for key, one in weights.items() if key[:2] == (stack_path, role) and side in one]
            heads = out[0].double().numpy().reshape(out.size(1), -1, attention.head_dim).transpose(1, 0, 2)
            one = weights.setdefault((stack_path, role, len(of_side)), {"attention": attention})
            one[side] = heads  # layers are run in their order, shared ones several times

        return note

    for stack_path, part in model.named_modules():
        for layer in getattr(part, "layers", ()):
            for role in ("attn", "cross"):
                attention = getattr(layer, role, None)
                if attention is not None and id(attention) not in done:
                    done.add(id(attention))
                    for side in "qk":
                        projection = getattr(attention, f"{side}_proj")
                        note = watch(stack_path, role, attention, side)
                        handles.append(projection.register_forward_hook(note))
    sides = [lever_input.tokens] if lever_input.source is None else [lever_input.source, lever_input.tokens]
    with torch.no_grad():
        model(*(torch.tensor([side]) for side in sides))
    for handle in handles:
        handle.remove()
    result = {}
    for (stack_path, role, layer), one in weights.items():
        path = f"{stack_path}.layers.{layer}.{role}"
        attention = one["attention"]
        scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
        scores = one["q"] @ one["k"].transpose(0, 2, 1) * scale
        if path.endswith(".attn"):
            distance = np.arange(scores.shape[1])[:, None] - np.arange(scores.shape[2])
            hidden = (distance < 0) & attention.causal
            if attention.window:
                is_near = distance < attention.window.size
                hidden |= ~is_near & (np.arange(scores.shape[2]) >= attention.window.sink)
            scores = np.where(hidden, -np.inf, scores)
        exps = np.exp(scores - scores.max(-1, keepdims=True))
        result[path] = exps / exps.sum(-1, keepdims=True)
    return result


@pytest.mark.parametrize(("kind", "changes", "name", "setting"), CASES, ids=str)
def test_changed_weights_are_softmax_of_changed_model(kind, changes, name, setting):
    model = make_model(kind, **changes)
    lever_input, arrays = make_input(model), ArrayStore()
    before = compute_softmax(model, lever_input)
    after = compute_softmax(change_model(model, name, setting), lever_input)
    if name == "head":
        setting = {"stack": "stack", "attention": "self"} | setting
    means = {path: np.abs(after[path] - before[path]).mean() for path in before}
    most = max(means, key=means.get)
    found = compute_case(lever_input, name, setting, MapStore(arrays, "x"))["attention"]
    assert found["path"] == most and found["change"] == pytest.approx(means[most], rel=1e-4)
    assert found["heads"] == [*range(len(after[most]))]
    assert np.abs(arrays.make_reader()(found["weights"]) - after[most]).max() < 1e-5
    for path in before:  # any attention can be asked for
        found = compute_case(lever_input, name, setting, MapStore(arrays, "y", path=path))["attention"]
        if found is None:
            assert means[path] < 1e-6
        else:
            assert np.abs(arrays.make_reader()(found["weights"]) - after[path]).max() < 1e-5


def test_only_heads_that_fit_are_stored():
    lever_input, arrays = make_input(make_model(**POSITION)), ArrayStore()
    case = compute_case(lever_input, "causal_mask", {}, MapStore(arrays, "x", max_bytes=500))
    change = case["attention"]
    whole = compute_case(lever_input, "causal_mask", {}, MapStore(arrays, "y"))["attention"]
    read = arrays.make_reader()
    after = read(whole["weights"])
    before = compute_softmax(lever_input.model, lever_input)[change["path"]]
    order = np.argsort(-np.abs(after - before).mean((1, 2)))
    assert change["heads"] == sorted(order[:2])  # of 81 weights each
    assert np.array_equal(read(change["weights"]), after[change["heads"]])
    window = lever_input.replace(windows=[(2, 7)])
    shown = compute_case(window, "causal_mask", {}, MapStore(arrays, "z", path=change["path"]))["attention"]
    assert np.array_equal(arrays.make_reader()(shown["weights"]), after[:, 2:7, 2:7])


def test_cases_without_changed_weights():
    lever_input, maps = make_input(make_model(**POSITION)), MapStore(ArrayStore(), "x")
    last = {"layer": 1, "head": 0}
    for name, setting in (("cache", {"cache": "static"}), ("head", last), ("cache", {"cache": "subgen"})):
        assert compute_case(lever_input, name, setting, maps)["attention"] is None
    assert "attention" not in compute_case(lever_input, "layer", {"layer": 0}, maps)
    assert "attention" not in compute_case(lever_input, "scale", {})
    with pytest.raises(UserError, match="there is no attention 'attn'; known: stack"):
        compute_case(lever_input, "scale", {}, maps._replace(path="attn"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_file_has_changed_weights_of_each_case(kind):
    run = make_run(kind=kind, position="learned")
    document = explain(run, TEXT, TARGET if kind == "encoder-decoder" else None)
    read, n_maps = read_document(document), 0
    for lever in document["levers"]["levers"]:
        for case in lever["cases"]:
            assert ("attention" in case) == (lever["name"] in MAP_LEVERS)
            if found := case.get("attention"):
                weights = read(found["weights"])
                before = read(f"{found['path']}.weights")[found["heads"]]
                assert weights.shape == before.shape
                assert np.abs(weights.sum(-1) - 1).max() < 16 / 2**15
                assert np.abs(weights - before).max() > found["change"]
                values = document["values"][found["weights"]]
                assert len(values["at"]) <= 2 and values["scale"] == pytest.approx(
                    weights.max() / (2**15 - 1)
                )
                n_maps += 1
    assert n_maps > 10


def test_weights_of_a_case_are_small():
    """Twelve heads of twenty tokens, as random as can be."""
    arrays = ArrayStore()
    arrays.store("x", torch.rand(12, 20, 20), levels=attention_change._LEVELS)
    assert len(arrays.pack()) < attention_change.MAX_CASE_BYTES
