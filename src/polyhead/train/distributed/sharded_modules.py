"""Modules and sums of a model that is sharded over tensor ranks.

A sharded module is one of a subclass of its own class. It reads the local part of each weight, so that it
computes with plain tensors; the parameters are DTensors and keep their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from polyhead.nn.block.base import ProjectsKV
from polyhead.nn.embedding import Head
from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.shard_plan import VocabularyShard, select_shard

GradientKind = Literal["local", "summed", "shared"]
"""The gradient of a weight.

local: as computed on the rank; summed: over the ranks, each of which applies a replicated weight to its own
heads or features; shared: as local, of a bias that each rank adds 1/n of, before outputs are summed.
"""


class WeightShard(NamedTuple):
    """How a rank reads one weight."""

    dim: int | None = None  # the dimension that is sharded; None if the weight is replicated
    gradient: GradientKind = "local"


REPLICATED_WEIGHT = WeightShard()


@cache
def make_sharded_class(
    base: Any, roles: tuple[type, ...], weights: tuple[tuple[str, WeightShard], ...], mesh: DeviceMesh
) -> type:
    """A subclass whose attributes of weights are their local parts; parameters and names are the same."""
    attributes: dict[str, Any] = {
        name: property(partial(_read_weight, name=name, weight_shard=weight_shard))
        for name, weight_shard in weights
    }
    if issubclass(base, nn.RNNBase):
        attributes["_flat_weights"] = property(_read_flat_weights, lambda module, value: None)
    attributes |= {"tensor_mesh": mesh, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (*roles, base), attributes)


def _read_weight(module: nn.Module, *, name: str, weight_shard: WeightShard) -> Tensor | None:
    """The local part of a weight; the weight itself while FSDP has sharded it over a second dimension."""
    weight: Any = module._parameters[name]
    if not isinstance(weight, DTensor) or weight.device_mesh.ndim > 1:
        return weight
    local: Tensor = weight.to_local()
    if weight_shard.gradient == "summed":
        return _apply(_SumGradient, local, weight.device_mesh.get_group())
    return (
        _apply(_Divide, local, weight.device_mesh.size(), 1) if weight_shard.gradient == "shared" else local
    )


def _read_flat_weights(module: nn.RNNBase) -> list[Tensor]:
    return [getattr(module, name) for name in module._flat_weights_names]


class ShardedPart(nn.Module):
    """A part of which each rank computes some heads or features, with a whole input and output."""

    tensor_mesh: DeviceMesh
    has_dropout: bool

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As the part itself."""
        with self.draw_own_dropout():
            out: Tensor = super().forward(self.sum_gradient(x), *args, **kwargs)
        return self.sum_outputs(out)

    def sum_gradient(self, x: Tensor) -> Tensor:
        """The input of the part; its gradient is summed over the ranks."""
        return _apply(_SumGradient, x, self.tensor_mesh.get_group())

    def sum_outputs(self, x: Tensor) -> Tensor:
        """The output, summed over the ranks."""
        return _apply(_SumOutputs, x, self.tensor_mesh.get_group())

    def draw_own_dropout(self) -> AbstractContextManager[None]:
        """Context in which ranks draw different random numbers; after it they draw the same again."""
        if not (self.training and self.has_dropout):
            return nullcontext()
        return _fork_random(self.tensor_mesh)


class ShardedAttention(ShardedPart):
    """Attention with some of the heads."""

    is_in_forward = False

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.is_in_forward = True  # project_kv then gets the input of the part
        try:
            return super().forward(x, *args, **kwargs)
        finally:
            self.is_in_forward = False

    def project_kv(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the attention itself, with some of the key/value heads."""
        projected: Any = super()
        return projected.project_kv(x if self.is_in_forward else self.sum_gradient(x), *args, **kwargs)


class ShardedExperts(ShardedPart):
    """A mixture of experts with some of their features, and with the whole router."""

    def route(self, tokens: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        """As the mixture itself. All ranks compute the same scores, so each has a share of the gradient."""
        routed: Any = super()
        expert_ids, weights = routed.route(_apply(_Divide, tokens, 1, self.tensor_mesh.size()), *args)
        return expert_ids, self.sum_gradient(weights)


class ShardedEmbedding(nn.Embedding):
    """Rows of some tokens; the vectors of the others come from the other ranks."""

    tensor_mesh: DeviceMesh

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., E)."""
        weight = self.weight
        own = select_shard(self.num_embeddings, self.tensor_mesh.get_local_rank(), self.tensor_mesh.size())
        is_elsewhere = (tokens < own.start) | (tokens >= own.stop)
        vectors = F.embedding((tokens - own.start).masked_fill(is_elsewhere, 0), weight)
        vectors = vectors.masked_fill(is_elsewhere[..., None], 0)
        return _apply(_SumOutputs, vectors, self.tensor_mesh.get_group())


class ShardedHead(Head):
    """The logits of some tokens; the loss needs no others."""

    tensor_mesh: DeviceMesh

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V): the logits of all tokens, for what is not a loss."""
        shard = self.vocabulary
        assert shard is not None
        logits = super().forward(shard.sum_gradient(x))
        padded = F.pad(logits, (shard.tokens.start, shard.vocab_size - shard.tokens.stop))
        return _apply(_SumOutputs, padded, self.tensor_mesh.get_group())


def make_vocabulary_shard(vocab_size: int, mesh: DeviceMesh) -> VocabularyShard:
    """The tokens of this rank, and sums over the ranks of a mesh."""
    tokens, group = select_shard(vocab_size, mesh.get_local_rank(), mesh.size()), mesh.get_group()
    return VocabularyShard(
        tokens, vocab_size, partial(all_reduce, group=group), lambda x: _apply(_SumGradient, x, group)
    )


def get_part_class(part: nn.Module) -> type:
    """The class that makes a part a sharded one."""
    if isinstance(part, MixtureOfExperts):
        return ShardedExperts
    return ShardedAttention if isinstance(part, ProjectsKV) else ShardedPart


@contextmanager
def _fork_random(mesh: DeviceMesh) -> Iterator[None]:
    """Seed the generators by the rank, and by a number that all ranks draw; restore them at the end."""
    common = int(torch.randint(2**62, (), device="cpu"))
    seed = np.random.SeedSequence([common, mesh.get_local_rank()]).generate_state(1, np.uint64)[0]
    devices = [] if mesh.device_type == "cpu" else [torch.accelerator.current_device_index()]
    with torch.random.fork_rng(devices, device_type=mesh.device_type):
        torch.manual_seed(int(seed))
        yield


def all_reduce(x: Tensor, operation: str, group: Any) -> Tensor:
    """The sum or the maximum over the ranks of a group, in a new tensor."""
    reduced: Tensor = funcol.wait_tensor(funcol.all_reduce(x.contiguous(), operation, group))
    return reduced


def _apply(function: type[torch.autograd.Function], x: Tensor, *args: Any) -> Tensor:
    out: Tensor = function.apply(x, *args)
    return out


class _SumGradient(torch.autograd.Function):
    """The identity, whose gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad, "sum", ctx.group), None


class _SumOutputs(torch.autograd.Function):
    """The sum over the ranks, which all have the same gradient of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Divide(torch.autograd.Function):
    """x / divisor, whose gradient is that of x / grad_divisor.

    Of n ranks each adds 1/n of a bias, or has 1/n of the gradient of what all compute alike.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, divisor: int, grad_divisor: int) -> Tensor:
        ctx.grad_divisor = grad_divisor
        return x / divisor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad / ctx.grad_divisor, None, None
