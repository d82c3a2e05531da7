"""Tensors of which this rank holds a part: shards of DTensors, and those of the stages of a pipeline."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from polyhead.checkpoint.safetensors_io import DescribedTensors, TensorSpec

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from polyhead.train.distributed.pipeline import PipelineModel


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


class StageTensors(DescribedTensors):
    """Tensors of all stages, each sent to the first stage when it is looked up.

    All processes of the pipeline look up the same names in the same order. On those without the first stage
    the result has a shape, but no values.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        owners: Mapping[str, int],
        own_tensors: Mapping[str, Tensor],
        pipeline: PipelineModel,
    ) -> None:
        self.specs, self.owners, self.pipeline = specs, owners, pipeline
        self.own_tensors = {
            name: tensor for name, tensor in own_tensors.items() if owners[name] == pipeline.rank
        }

    def __getitem__(self, name: str) -> Tensor:
        (dtype, shape), owner, pipeline = self.specs[name], self.owners[name], self.pipeline
        found = torch.empty(shape, dtype=dtype, device="meta")
        if pipeline.rank == owner:
            found = full_tensor(self.own_tensors[name].detach())
            if owner:
                dist.send(found.contiguous(), group=pipeline.group, group_dst=0)
        elif pipeline.rank == 0:
            found = torch.empty(shape, dtype=dtype, device=pipeline.device)
            dist.recv(found, group=pipeline.group, group_src=owner)
        return found
