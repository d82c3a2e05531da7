"""The trained state of a model: parameters and running statistics."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from polyhead.core.errors import UserError

ModelT = TypeVar("ModelT", bound=nn.Module)


@runtime_checkable
class ComputesBuffers(Protocol):
    """A module with buffers that are no state: constants, or tables computed from its settings."""

    def compute_buffers(self) -> None:
        """Compute the buffers on the default device."""


def named_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and running statistics by name, tied ones once; without buffers that can be recomputed."""
    return dict(model.named_parameters()) | running_stats(model)


def check_weight(name: str, tensor: Tensor, source: object) -> Tensor:
    """Return a stored weight; a UserError if it has NaN or an infinite value.

    Outputs do not show all of them: attention gives 0 where all scores are NaN.
    """
    # one pass without a copy; NaN anywhere is both bounds
    if tensor.is_floating_point() and tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):
        raise UserError(f"{source} is damaged: {name} has NaN or an infinite value")
    return tensor


def materialize(model: ModelT, dtype: torch.dtype = torch.float32, exclude: Container[int] = ()) -> ModelT:
    """Copy the model's state to its own memory in ``dtype``, except tensors whose id() is in ``exclude``."""
    for tensor in named_state(model).values():
        if id(tensor) not in exclude:
            tensor.data = tensor.data.to(dtype, copy=True, memory_format=torch.contiguous_format)
    return model


def assign_state(model: ModelT, tensors: Mapping[str, Tensor]) -> ModelT:
    """Move a model from the meta device to the CPU: its state becomes ``tensors``, which are not copied."""
    state = named_state(model)  # kept until the end: an id may be used again by another tensor
    replacements = {
        id(old): nn.Parameter(tensors[name], old.requires_grad)
        if isinstance(old, nn.Parameter)
        else tensors[name]
        for name, old in state.items()
    }
    for module in model.modules():
        # a tied tensor has a name in each of its modules
        for name, old in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if id(old) in replacements:
                setattr(module, name, replacements[id(old)])
        if isinstance(module, ComputesBuffers):
            with torch.device("cpu"):
                module.compute_buffers()
    return model


def running_stats(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics by name: the persistent buffers, which the forward pass updates."""
    persistent = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in persistent}
