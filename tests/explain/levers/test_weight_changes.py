import copy

import pytest
import torch
from tests.explain.levers.levers_helpers import (
    check_lever,
    make_input,
    make_lever_input,
    make_model,
    run_model,
)
from torch import nn

from polyhead.core.errors import UserError
from polyhead.explain.levers.changes import HEAD_LEVER, KV_HEADS_LEVER, LAYER_LEVER, list_heads
from polyhead.explain.levers.table import compute_case

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
def test_removed_head_and_skipped_layer(kind, changes):
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
        check_lever(HEAD_LEVER, address._asdict(), lever_input, other)
    for setting in LAYER_LEVER.list_cases(lever_input):
        other = copy.deepcopy(model)
        del get_stack(other, setting["stack"]).layers[setting["layer"]]
        check_lever(LAYER_LEVER, setting, lever_input, other)
    torch.testing.assert_close(run_model(model, lever_input), lever_input.plain_logits)  # restored


def test_head_is_removed_in_one_of_shared_layers():
    model = make_model("encoder", share_layers=True)
    lever_input = make_input(model)
    other = copy.deepcopy(model)
    layer = other.encoder.stack.layers[0]
    other.encoder.stack.layers = nn.ModuleList([copy.deepcopy(layer), layer])
    with torch.no_grad():
        other.encoder.stack.layers[0].attn.o_proj.weight[:, :4] = 0
    setting = {"stack": "stack", "attention": "self", "layer": 0, "head": 0}
    check_lever(HEAD_LEVER, setting, lever_input, other)


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
        output = check_lever(KV_HEADS_LEVER, case, lever_input, average_heads(model, case["n_kv_heads"]))
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
        ("head", {"stack": "encoder", "attention": "cross"}, "no head 0 in cross-attention of layer 0"),
        ("layer", {"stack": "middle"}, "unknown stack of lever 'layer' 'middle'"),
        ("kv_heads", {"n_kv_heads": 3}, "must be less than 4 and divide it"),
        ("kv_heads", {"heads": 3}, "unknown field of lever 'kv_heads' 'heads'"),
        ("knob", {}, "unknown lever 'knob'"),
    ],
)
def test_invalid_setting_is_an_error(name, setting, message):
    with pytest.raises(UserError, match=message.replace("/", ".")):
        compute_case(make_lever_input("encoder-decoder"), name, setting)
