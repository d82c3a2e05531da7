"""Tests of nn/device.py."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from polyhead.core.errors import UserError
from polyhead.nn import device
from polyhead.nn.device import host_copy, move_tensor, resolve_device, to_model_device, true_indices


class Batch(NamedTuple):
    tokens: Tensor
    sides: tuple[Tensor, None]


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")


def test_processes_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three GPUs the one of LOCAL_RANK modulo 3, as torchrun numbers the processes of a machine."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: asked.append(device) or torch.ones(1))
    for rank in range(5):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        resolve_device("auto")
    assert asked == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1"]


@pytest.mark.parametrize("name", ["meta", "gpu", "cpu:x", "", "cuda:99"])
def test_a_device_that_cannot_be_used_is_refused_with_those_that_can(name: str) -> None:
    with pytest.raises(UserError, match=f"device {name!r} is not available to torch; available: cpu"):
        resolve_device(name)


def test_a_batch_goes_to_the_device_of_the_weights() -> None:
    batch = Batch(torch.ones(2, 3), (torch.ones(1), None))
    assert to_model_device(nn.Linear(2, 2), batch) is batch
    moved = to_model_device(nn.Linear(2, 2, device="meta"), batch)
    assert isinstance(moved, Batch) and moved.sides[1] is None
    assert moved.tokens.device.type == moved.sides[0].device.type == "meta"
    assert moved.tokens.shape == (2, 3)


def test_a_batch_goes_to_a_gpu_from_pinned_memory_and_keeps_its_numbers_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[torch.Tensor] = []

    def pin(x: torch.Tensor) -> torch.Tensor:
        pinned.append(x)
        return x.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    x = torch.arange(4)
    assert host_copy(move_tensor(x, torch.device("meta"))) is x
    assert not pinned
    monkeypatch.setattr(device, "PINNED_TYPES", {"meta"})
    moved = move_tensor(x, torch.device("meta"))
    assert moved.device.type == "meta"
    assert host_copy(moved) is x
    assert pinned[0] is x
    assert move_tensor(x, torch.device("cpu")) is x
    assert host_copy(moved + 1).device.type == "meta"  # what is computed there is not known here


def test_indices_of_a_mask_are_those_of_its_true_elements() -> None:
    mask = torch.tensor([[False, True], [True, False]])
    assert true_indices(mask, torch.device("cpu")).tolist() == [1, 2]
    assert host_copy(true_indices(mask, torch.device("meta"))).tolist() == [1, 2]
