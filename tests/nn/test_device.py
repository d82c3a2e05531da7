from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from polyhead.core.errors import UserError
from polyhead.nn import device
from polyhead.nn.device import (
    host_batch,
    move_tensor,
    place_batch,
    resolve_device,
    to_model_device,
    true_indices,
)


class Batch(NamedTuple):
    tokens: Tensor
    sides: tuple[Tensor, None]


def test_devices_of_ranks_and_batches(monkeypatch):
    """Of three GPUs the one of LOCAL_RANK modulo 3, as torchrun numbers the processes of a machine."""
    devices = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: devices.append(device) or torch.ones(1))
    for rank in range(5):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        resolve_device("auto")
    assert devices == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1"]
    batch = Batch(torch.ones(2, 3), (torch.ones(1), None))
    assert to_model_device(nn.Linear(2, 2), batch) is batch
    batch = to_model_device(nn.Linear(2, 2, device="meta"), batch)
    assert isinstance(batch, Batch) and batch.sides[1] is None
    assert batch.tokens.device.type == batch.sides[0].device.type == "meta"
    assert batch.tokens.shape == (2, 3)


@pytest.mark.parametrize("name", ["meta", "gpu", "cpu:x", "", "cuda:99"])
def test_unavailable_device_is_refused(name):
    with pytest.raises(UserError, match=f"device {name!r} is not available to torch; available: cpu"):
        resolve_device(name)


def test_tensors_are_pinned_and_moved(monkeypatch):
    calls, x, meta = [], torch.arange(4), torch.device("meta")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: calls.append(x) or x.clone())
    assert move_tensor(x, meta).device == meta and not calls
    monkeypatch.setattr(device, "PINNED_TYPES", {"meta"})
    on_device = move_tensor(x, meta)
    assert on_device.device == meta and calls[0] is x and move_tensor(on_device, meta) is on_device
    assert move_tensor(x, torch.device("cpu")) is x
    mask = torch.tensor([[False, True], [True, False]])
    assert true_indices(mask, torch.device("cpu")).tolist() == [1, 2]
    assert true_indices(mask, meta).device == meta


def test_placed_batches_keep_their_original():
    model, batch = nn.Linear(2, 2, device="meta"), Batch(torch.ones(2, 3), (torch.ones(1), None))
    placed = place_batch(model, batch)
    assert placed.host is batch and placed.batch.tokens.device.type == "meta"
    again = place_batch(model, placed)
    assert again.host is batch and again.batch.tokens is placed.batch.tokens
    assert host_batch(placed) is host_batch(batch) is batch
