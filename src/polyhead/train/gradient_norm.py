"""The norm of gradients that are split over ranks, and its limit."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn

from polyhead.train.distributed.local_tensor import get_local, is_split
from polyhead.train.distributed.process_group import ProcessGroup


def clip_split_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    ranks: ProcessGroup,
    other_ranks_parameters: Collection[nn.Parameter] = (),
) -> float:
    """As ``nn.utils.clip_grad_norm_`` over all ranks; each weight counts once, however it is split or copied.

    ``other_ranks_parameters`` count on another rank. All ranks call it.
    """
    trained = [p for p in parameters if p.grad is not None]
    locals_ = [get_local(p.grad) for p in trained if p.grad is not None]
    n_ranks = ranks.place.shape.n_ranks_per_stage
    squares = 0.0
    norms: list[Tensor] = list(torch._foreach_norm(locals_)) if locals_ else []
    for p, norm in zip(trained, norms, strict=True):
        if p not in other_ranks_parameters:
            squares += float(norm) ** 2 * _count_shards(p) / n_ranks
    [total] = ranks.all_reduce(squares)
    norm = math.sqrt(total)
    if locals_ and norm > max_norm:
        torch._foreach_mul_(locals_, max_norm / (norm + 1e-6))
    return norm


def _count_shards(tensor: Tensor) -> int:
    """Number of different parts of a tensor."""
    if not is_split(tensor):
        return 1
    sizes = tensor.device_mesh.shape
    return math.prod(
        size for size, placement in zip(sizes, tensor.placements, strict=True) if not placement.is_replicate()
    )
