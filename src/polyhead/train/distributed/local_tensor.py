"""The shard of a DTensor that this rank holds, and the full tensor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is one of torch's DTensors, a part of which each rank holds."""
    # their module takes half a second to import, and before that there are none
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def get_local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds; a plain tensor is its own."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a DTensor, by a collective of the ranks that hold its shards; else the tensor."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def shard_like(full: Tensor, tensor: Tensor) -> Tensor:
    """A full tensor that all ranks have, sharded as ``tensor``; sends nothing. A DTensor stays as it is."""
    if not is_dtensor(tensor) or is_dtensor(full):
        return full
    from torch.distributed.tensor import Replicate

    mesh = tensor.device_mesh
    copies = type(tensor).from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return copies.redistribute(mesh, tensor.placements)
