"""Select a device and move batches to it."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from polyhead.core.errors import UserError, format_value

T = TypeVar("T")


def resolve_device(name: str) -> torch.device:
    """Resolve a torch device name; ``auto`` is a CUDA or ROCm GPU if there is one, else the CPU.

    Several processes on one machine get one GPU each (LOCAL_RANK).
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.device_count() > 1:
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # fails on "meta", which has no data
        return probe.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise UserError(
            f"device {format_value(name)} is not available to torch; available: {', '.join(usable)}"
        ) from error


def to_model_device(model: nn.Module, batch: T) -> T:
    """Move the tensors of a batch, also those in nested tuples, to the device of the model's weights."""
    device = next(model.parameters()).device
    return batch if device.type == "cpu" else _to_device(batch, device)


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        parts = [_to_device(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
