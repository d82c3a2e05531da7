"""Select a device, move batches to it, and read conditions from it; the dtype of matrix products."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from polyhead.core.array_types import is_named_tuple
from polyhead.core.errors import UserError, format_value


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Context manager that disables autocast; the meta device has none."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert to fp32, unless the dtype is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a linear map of x is computed: that of autocast, if it is enabled."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


T = TypeVar("T")
PINNED_TYPES = {"cuda"}
"""Devices that copy from page-locked memory while they compute."""


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


class PlacedBatch(NamedTuple, Generic[T]):
    """A batch on the device of a model, and its original on the CPU.

    What depends on the numbers of a batch, such as how many labels it has, is computed from the original:
    reading a number of another device waits for all its work.
    """

    batch: T
    host: T


def place_batch(model: nn.Module, batch: T | PlacedBatch[T]) -> PlacedBatch[T]:
    """A batch on the device of the model's weights; one that is there already is not moved again."""
    return move_batch(batch, next(model.parameters()).device)


def to_model_device(model: nn.Module, batch: T | PlacedBatch[T]) -> T:
    """The tensors of a batch, also those in nested tuples, on the device of the model's weights."""
    return place_batch(model, batch).batch


def move_batch(batch: T | PlacedBatch[T], device: torch.device) -> PlacedBatch[T]:
    """Start to copy the tensors of a batch to ``device``."""
    current, host = batch if isinstance(batch, PlacedBatch) else (batch, batch)
    moved: T = host if device.type == "cpu" else _map_tensors(current, lambda x: move_tensor(x, device))
    return PlacedBatch(moved, host)


def host_batch(batch: T | PlacedBatch[T]) -> T:
    """The original of a batch on the CPU."""
    return batch.host if isinstance(batch, PlacedBatch) else batch


def move_tensor(value: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to ``device`` without waiting.

    From pageable memory the copy would first wait for all work of the device.
    """
    if device.type == "cpu" or value.device == device:
        return value
    pinned = value.pin_memory() if device.type in PINNED_TYPES else value
    return pinned.to(device, non_blocking=True)


def is_traced() -> bool:
    """Whether a graph is being compiled or exported, which must work for any numbers."""
    return torch.compiler.is_compiling() or torch.compiler.is_exporting()


def known_true(condition: Tensor) -> bool:
    """Whether a data-dependent condition is known to hold: only on the CPU, and outside of graphs.

    Reading a number of another device waits for all its work. Callers use this only to take a shortcut; the
    path for False must be correct in any case.
    """
    is_graph = (
        torch.compiler.is_compiling() or torch.compiler.is_exporting()
    )  # no call: it runs in each layer
    return not is_graph and condition.device.type == "cpu" and bool(condition)


def true_indices(mask: Tensor, device: torch.device) -> Tensor:
    """The indices of the true elements of a mask, flattened, on ``device``: (n,)."""
    index = mask.flatten().nonzero().squeeze(-1)
    return index if index.device == device else move_tensor(index, device)


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``change`` applied to the tensors of a batch, also to those in nested tuples."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        parts = [_map_tensors(part, change) for part in value]
        return type(value)(*parts) if is_named_tuple(value) else tuple(parts)
    return value
