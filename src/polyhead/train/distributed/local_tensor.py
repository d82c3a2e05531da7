"""The part of a split tensor that this rank holds, and the whole of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_split(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is one of torch's DTensors, a part of which each rank holds."""
    # their module takes half a second to import, and before that there are none
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def get_local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds; a tensor that is not split is its own."""
    return tensor.to_local() if is_split(tensor) else tensor


def get_whole(tensor: Tensor) -> Tensor:
    """The whole of a split tensor; a collective of the ranks that hold its parts."""
    return tensor.full_tensor() if is_split(tensor) else tensor


def split_like(full: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor that all ranks have, split as ``tensor``; sends nothing. One that is split stays so."""
    if not is_split(tensor) or is_split(full):
        return full
    from torch.distributed.tensor import Replicate

    mesh = tensor.device_mesh
    copies = type(tensor).from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return copies.redistribute(mesh, tensor.placements)
