"""Fully sharded data parallelism by torch's FSDP2 (Rajbhandari et al., 2020; Zhao et al., 2023).

Each rank of a mesh dimension keeps 1/n of every weight, its gradient and its optimizer state. A block is
gathered for its forward pass and again for its backward pass, whose gradients are summed into the shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from polyhead.nn.block.base import ProjectsKV
from polyhead.nn.stack import Stack
from polyhead.train.distributed.mesh import MeshShape
from polyhead.train.loss_module import LossModule


def shard_weights(
    root: LossModule, mesh: DeviceMesh, reduce_dtype: Literal["fp32", "bf16"] = "fp32"
) -> LossModule:
    """Shard all weights below ``root`` in place: the blocks of its stacks one by one, then the rest.

    A mesh of two dimensions has copies of the model along the first one, and shards it along the second
    (hybrid sharding). Gradients are sums over all ranks of the mesh.
    """
    # this module takes a second to import
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16 if reduce_dtype == "bf16" else None)
    stacks = [part for part in root.modules() if isinstance(part, Stack)]
    blocks = list(dict.fromkeys(block for stack in stacks for block in stack.layers))  # shared ones once
    shared = find_shared_weights(root, blocks)
    # of the root, also where only blocks have them
    root.shared = nn.ModuleList(
        part for part in root.modules() if not shared.isdisjoint(part.parameters(recurse=False))
    )
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, ignored_params=shared)
        if isinstance(block, ProjectsKV):  # the decoder reads the encoder's output before its forward pass
            register_fsdp_forward_method(block, "project_kv")
    fully_shard(root, mesh=mesh, mp_policy=policy)
    register_fsdp_forward_method(root, "run")
    for part in root.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that scales
    return root


def find_shared_weights(root: nn.Module, blocks: Sequence[nn.Module]) -> set[nn.Parameter]:
    """Weights of several blocks, or of a block and what is around it: tables of positions.

    They belong to no block, and are gathered for the whole forward pass.
    """
    owners = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    in_blocks = {id(part) for block in blocks for part in block.modules()}
    outside = {
        parameter
        for part in root.modules()
        if id(part) not in in_blocks
        for parameter in part.parameters(recurse=False)
    }
    return {parameter for parameter, count in owners.items() if count > 1 or parameter in outside}


def get_sharding_mesh(mesh: DeviceMesh, shape: MeshShape) -> DeviceMesh:
    """The dimensions over which weights are sharded, after those with copies of them."""
    sharded = "shard"
    if shape.context > 1:  # context ranks share rows, but not weights
        sharded = "shard_context"
        mesh["shard", "context"]._flatten(sharded)
    return mesh["replicate", sharded] if shape.replicate > 1 else mesh[sharded]
