"""Tests of checkpoint/optimizer_state_io.py."""

import json

import pytest
import torch
from tests.checkpoint.checkpoint_helpers import same

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import save_checkpoint
from polyhead.checkpoint.optimizer_state_io import flatten_optimizer, unflatten_optimizer
from polyhead.core.errors import UserError


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_optimizer_goes_on_as_if_it_had_never_been_saved(tmp_path, make, dtype):
    def build():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).to(dtype)
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}]
        options = {"fused": True} if make is not torch.optim.SGD else {"momentum": 0.9}
        return model, make(groups, lr=1e-2, **options)

    def step(model, optimizer, seed):
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
        model(x).square().sum().backward()
        optimizer.step()

    model, optimizer = build()
    step(model, optimizer, 1)
    tensors, layout = flatten_optimizer(optimizer.state_dict())
    path = save_checkpoint(
        tmp_path, 1, {"model": model.state_dict(), "optimizer": tensors}, {"optimizer": layout}
    )

    found = checkpoint.read_checkpoint(path)
    other, other_optimizer = build()
    other.load_state_dict(found.tensors["model"])
    state = unflatten_optimizer(found.tensors["optimizer"], found.state["optimizer"])
    assert same(state, optimizer.state_dict())
    other_optimizer.load_state_dict(state)
    for seed in (2, 3):
        step(model, optimizer, seed)
        step(other, other_optimizer, seed)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(other_optimizer.state_dict(), optimizer.state_dict())


def test_nested_state_of_an_optimizer_is_taken_apart_and_put_together():
    shared = torch.ones(2)
    state = {
        "state": {0: {"a": shared, "b": (1, 2.5, [shared[:1], None])}},
        "flag": True, "nan": float("nan"), "tuple": (), "list": [],
    }  # fmt: skip
    tensors, layout = flatten_optimizer(state)
    assert same(unflatten_optimizer(tensors, json.loads(json.dumps(layout))), state)
    with pytest.raises(UserError, match="'x/y' of the optimizer: a object"):
        flatten_optimizer({"x": {"y": object()}})
    with pytest.raises(UserError, match="'state/0/a' is missing"):
        unflatten_optimizer({}, layout)
    for forged in ({"tuple": 3}, {"dict": [1]}, {"a": 1}, {}):
        with pytest.raises(UserError, match="layout"):
            unflatten_optimizer({}, forged)
