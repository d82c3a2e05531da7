"""What training changes in a model."""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and running statistics of a model by name, tied ones once; not what it can compute anew."""
    return dict(model.named_parameters()) | running(model)


def settled(model: Model, dtype: torch.dtype = torch.float32, but: Container[int] = ()) -> Model:
    """The model with its weights of that type and in memory of its own, but for those whose ids are named."""
    for tensor in weights(model).values():
        if id(tensor) not in but:
            tensor.data = tensor.data.to(dtype, copy=True, memory_format=torch.contiguous_format)
    return model


def running(model: nn.Module) -> dict[str, Tensor]:
    """The running statistics of a model by name: they change as it reads, not as it learns."""
    kept = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}
