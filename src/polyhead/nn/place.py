"""Where tensors are: on the CPU, or on a device beside it."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from polyhead.errors import UserError, show

T = TypeVar("T")


def device_of(name: str) -> torch.device:
    """A device by its name, as torch calls it; ``auto`` is a GPU of CUDA or ROCm where there is one, else the CPU.

    Of several processes on a machine each takes a GPU of its own.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.device_count() > 1:
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    try:
        there = torch.zeros(1, device=name)
        there.item()  # a number comes back, which it does not from "meta"
        return there.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise UserError(
            f"device {show(name)} is none that torch can use here; there are: {', '.join(usable)}"
        ) from error


def beside(model: nn.Module, batch: T) -> T:
    """The same batch with its tensors, also those of tuples in it, where the weights of the model are."""
    device = next(model.parameters()).device
    return batch if device.type == "cpu" else _moved(batch, device)


def _moved(given: Any, device: torch.device) -> Any:
    if isinstance(given, Tensor):
        return given.to(device, non_blocking=True)
    if isinstance(given, tuple):
        parts = [_moved(part, device) for part in given]
        return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)
    return given
