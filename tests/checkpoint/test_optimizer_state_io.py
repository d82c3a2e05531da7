import json

import pytest
import torch
from tests.checkpoint.checkpoint_helpers import is_identical

from polyhead.checkpoint.checkpoint import read_checkpoint, save_checkpoint
from polyhead.checkpoint.optimizer_state_io import flatten_optimizer, unflatten_optimizer
from polyhead.core.errors import UserError


@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_optimizer_continues_bit_for_bit(tmp_path, optimizer_class, dtype):
    def build():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).to(dtype)
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}]
        options = {"fused": True} if optimizer_class is not torch.optim.SGD else {"momentum": 0.9}
        return model, optimizer_class(groups, lr=1e-2, **options)

    def step(model, optimizer, seed):
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
        model(x).square().sum().backward()
        optimizer.step()

    model, optimizer = build()
    step(model, optimizer, 1)
    tensors, layout = flatten_optimizer(optimizer.state_dict())
    tensors = {"model": model.state_dict(), "optimizer": tensors}
    checkpoint = read_checkpoint(save_checkpoint(tmp_path, 1, tensors, {"optimizer": layout}))
    resumed_model, resumed_optimizer = build()
    resumed_model.load_state_dict(checkpoint.tensors["model"])
    state = unflatten_optimizer(checkpoint.tensors["optimizer"], checkpoint.state["optimizer"])
    assert is_identical(state, optimizer.state_dict())
    resumed_optimizer.load_state_dict(state)
    for seed in (2, 3):
        step(model, optimizer, seed)
        step(resumed_model, resumed_optimizer, seed)
    assert is_identical(dict(resumed_model.state_dict()), dict(model.state_dict()))
    assert is_identical(resumed_optimizer.state_dict(), optimizer.state_dict())


def test_nested_state_is_flattened_and_restored():
    tensor = torch.ones(2)
    state = {"state": {0: {"a": tensor, "b": (1, 2.5, [tensor[:1], None])}}}
    state |= {"flag": True, "nan": float("nan"), "tuple": (), "list": []}
    tensors, layout = flatten_optimizer(state)
    assert is_identical(unflatten_optimizer(tensors, json.loads(json.dumps(layout))), state)
    with pytest.raises(UserError, match="'x/y' of the optimizer: a object"):
        flatten_optimizer({"x": {"y": object()}})
    with pytest.raises(UserError, match="'state/0/a' is missing"):
        unflatten_optimizer({}, layout)
    for invalid_layout in ({"tuple": 3}, {"dict": [1]}, {"a": 1}, {}):
        with pytest.raises(UserError, match="layout"):
            unflatten_optimizer({}, invalid_layout)
