"""Levers on weights against models whose weights were changed by hand."""

import copy

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_lever_input, make_model, run_model
from torch import nn

from polyhead.core.errors import UserError
from polyhead.explain.levers.table import compute_case
from polyhead.explain.levers.weight_changes import HEAD_LEVER, KV_HEADS_LEVER, LAYER_LEVER, list_heads

DESIGNS = [
    ("decoder", {"position": "rope", "norm_first": True, "n_kv_heads": 2}),
    ("decoder", {"attention": {"name": "linear"}, "position": "none"}),
    ("encoder-decoder", {}),
    ("encoder", {"block": "parallel", "norm_first": True}),
    ("encoder", {"labels": ["a", "b"]}),
]


def get_stack(model, name):
    if name != "stack":
        return getattr(model, name)
    return model.stack if model.config.kind == "decoder" else model.encoder.stack


@pytest.mark.parametrize(("kind", "changes"), DESIGNS)
def test_removed_head_has_zero_output_weights(kind, changes):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    heads = [*list_heads(model)]
    assert len(heads) == 4 * 2 * (3 if kind == "encoder-decoder" else 1)
    for address in heads[1::3]:
        other = copy.deepcopy(model)
        layer = get_stack(other, address.stack).layers[address.layer]
        attn = layer.attn if address.attention == "self" else layer.cross
        with torch.no_grad():
            attn.o_proj.weight[:, 4 * address.head : 4 * address.head + 4] = 0
        expected = run_model(other, lever_input)
        torch.testing.assert_close(HEAD_LEVER.compute(lever_input, address._asdict()).logits, expected)
        assert not torch.allclose(expected, lever_input.plain_logits)
    torch.testing.assert_close(run_model(model, lever_input), lever_input.plain_logits)  # restored


def test_head_is_removed_in_one_of_shared_layers():
    model = make_model("encoder", share_layers=True)
    lever_input = make_input(model)
    other = copy.deepcopy(model)
    layer = other.encoder.stack.layers[0]
    other.encoder.stack.layers = nn.ModuleList([copy.deepcopy(layer), layer])
    with torch.no_grad():
        other.encoder.stack.layers[0].attn.o_proj.weight[:, :4] = 0
    output = HEAD_LEVER.compute(lever_input, {"stack": "stack", "attention": "self", "layer": 0, "head": 0})
    torch.testing.assert_close(output.logits, run_model(other, lever_input))


@pytest.mark.parametrize(("kind", "changes"), DESIGNS)
def test_skipped_layer_is_deleted(kind, changes):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    for setting in LAYER_LEVER.list_cases(lever_input):
        other = copy.deepcopy(model)
        del get_stack(other, setting["stack"]).layers[setting["layer"]]
        expected = run_model(other, lever_input)
        torch.testing.assert_close(LAYER_LEVER.compute(lever_input, setting).logits, expected)
        assert not torch.allclose(expected, lever_input.plain_logits)


def average_heads(model, n):
    """A copy whose key and value heads are the means of their n groups."""
    other = copy.deepcopy(model)
    for name, part in other.named_modules():
        if name.endswith(("k_proj", "v_proj")):
            for p in part.parameters():
                heads = p.data.unflatten(0, (n, model.config.kv_heads // n, 4))
                p.data = heads.mean(1, keepdim=True).expand_as(heads).reshape(p.shape)
    return other


@pytest.mark.parametrize(("kind", "changes"), [DESIGNS[0], *DESIGNS[2:]])
def test_fewer_kv_heads_are_means_of_groups(kind, changes):
    model = make_model(kind, **changes)
    lever_input = make_input(model)
    cases = KV_HEADS_LEVER.list_cases(lever_input)
    assert [case["n_kv_heads"] for case in cases] == ([1] if changes.get("n_kv_heads") else [2, 1])
    for case in cases:
        output = KV_HEADS_LEVER.compute(lever_input, case)
        expected = run_model(average_heads(model, case["n_kv_heads"]), lever_input)
        torch.testing.assert_close(output.logits, expected)
        bytes_before, bytes_after = (2 * 2 * 4 * 4 * n for n in (model.config.kv_heads, case["n_kv_heads"]))
        assert output.detail["bytes_per_token"] == {"before": bytes_before, "after": bytes_after}


def test_obstacles_of_weight_levers():
    recurrent = make_lever_input(block="gru", position="none")
    for lever in (HEAD_LEVER, KV_HEADS_LEVER):
        assert lever.find_obstacle(recurrent) == "this model has no attention heads"
    assert LAYER_LEVER.list_cases(recurrent) == [{"stack": "stack", "layer": i} for i in (0, 1)]
    assert "one key/value head" in KV_HEADS_LEVER.find_obstacle(make_lever_input(n_kv_heads=1))
    tied_input = make_lever_input(attention={"name": "softmax", "tie": "qk"})
    assert "share one projection" in KV_HEADS_LEVER.find_obstacle(tied_input)
    assert "one layer" in LAYER_LEVER.find_obstacle(make_lever_input(n_layers=1))


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("head", {"head": 4}, "head of lever 'head' must be an integer from 0 to 3, got 4"),
        ("head", {"stack": "decoder", "attention": "cross", "layer": True}, "got true"),
        ("head", {"stack": "encoder", "attention": "cross"}, "no head 0 in cross-attention of layer 0"),
        ("layer", {"stack": "middle"}, "unknown stack of lever 'layer' 'middle'"),
        ("layer", {"stack": "decoder", "layer": 2}, "must be an integer from 0 to 1, got 2"),
        ("kv_heads", {"n_kv_heads": 3}, "must be less than 4 and divide it"),
        ("kv_heads", {"heads": 3}, "unknown field of lever 'kv_heads' 'heads'"),
        ("knob", {}, "unknown lever 'knob'"),
    ],
)
def test_invalid_setting_is_an_error(name, setting, message):
    with pytest.raises(UserError, match=message.replace("/", ".")):
        compute_case(make_lever_input("encoder-decoder"), name, setting)
