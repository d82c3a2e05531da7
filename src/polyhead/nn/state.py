"""The trained state of a model: parameters and running statistics."""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

import torch
from torch import Tensor, nn

ModelT = TypeVar("ModelT", bound=nn.Module)


def named_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and running statistics by name, tied ones once; without buffers that can be recomputed."""
    return dict(model.named_parameters()) | running_stats(model)


def materialize(model: ModelT, dtype: torch.dtype = torch.float32, exclude: Container[int] = ()) -> ModelT:
    """Copy the model's state to its own memory in ``dtype``, except tensors whose id() is in ``exclude``."""
    for tensor in named_state(model).values():
        if id(tensor) not in exclude:
            tensor.data = tensor.data.to(dtype, copy=True, memory_format=torch.contiguous_format)
    return model


def running_stats(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics by name: the persistent buffers, which the forward pass updates."""
    persistent = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in persistent}
