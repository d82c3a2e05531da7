"""The norm of gradients that are sharded over ranks, and its limit."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from polyhead.train.distributed.local_tensor import get_local, is_dtensor
from polyhead.train.distributed.process_group import ProcessGroup


def clip_sharded_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    ranks: ProcessGroup,
    other_ranks_parameters: Iterable[nn.Parameter] = (),
) -> float:
    """As ``nn.utils.clip_grad_norm_`` over all ranks; each weight counts once, sharded or copied.

    ``other_ranks_parameters`` count on another rank. All ranks call it.
    """
    trained = [p for p in parameters if p.grad is not None]
    grads = [get_local(p.grad) for p in trained if p.grad is not None]
    norms: list[Tensor] = list(torch._foreach_norm(grads)) if grads else []
    other_ids = set(map(id, other_ranks_parameters))
    squares = sum(
        float(norm) ** 2 * _count_shards(p)
        for p, norm in zip(trained, norms, strict=True)
        if id(p) not in other_ids
    )
    [total] = ranks.all_reduce(squares / ranks.place.shape.n_ranks_per_stage)  # each part is on several ranks
    total_norm = math.sqrt(total)
    if grads and total_norm > max_norm:
        torch._foreach_mul_(grads, max_norm / (total_norm + 1e-6))
    return total_norm


def _count_shards(tensor: Tensor) -> int:
    """Number of different parts of a tensor."""
    if not is_dtensor(tensor):
        return 1
    sizes = tensor.device_mesh.shape
    return math.prod(
        int(size)
        for size, placement in zip(sizes, tensor.placements, strict=True)
        if not placement.is_replicate()
    )
