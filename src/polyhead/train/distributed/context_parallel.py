"""Context parallelism: the ranks of a group share the tokens of each row.

Each rank runs the model on its tokens, and attention gathers the keys and values of all (Grattafiori et al.,
2024, sec. 3.3.2); the backward pass sums their gradients over the ranks. Positions are data, so masks,
windows and position schemes need no change. All else in a model reads one token at a time, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyhead.config.model import ModelSpec
from polyhead.core.registry import ATTENTION
from polyhead.data.batching.token_windows import SequenceShard, join_shards
from polyhead.nn.block.base import GathersKV
from polyhead.nn.block.transformer import Block
from polyhead.nn.kv import KV, Window, visible
from polyhead.nn.validate_model import build_sample_layers
from polyhead.train.distributed.mesh import RankPlace

BatchT = TypeVar("BatchT")
# torch 2.13 has new names for all_gather_into_tensor and reduce_scatter_tensor
_has_new_names = hasattr(dist, "all_gather_single")
_all_gather_single = dist.all_gather_single if _has_new_names else dist.all_gather_into_tensor
_reduce_scatter_single = dist.reduce_scatter_single if _has_new_names else dist.reduce_scatter_tensor


@runtime_checkable
class ShardsSequence(Protocol):
    """A task whose loss is a sum over tokens, so that the tokens of a row can be sharded over ranks."""

    def shard_sequence(self, batch: BatchT, shard: SequenceShard) -> BatchT:
        """One rank's part of the tokens of a batch, with their positions and labels."""


def shard_batch(task: object, batch: BatchT, place: RankPlace) -> BatchT:
    """A rank's part of the tokens of a batch, which all ranks of its context group have."""
    if place.shape.context == 1:
        return batch
    assert isinstance(task, ShardsSequence), "a training that cannot be sharded is refused before"
    return task.shard_sequence(batch, SequenceShard(place.coordinates.context, place.shape.context))


class ContextGather:
    """Gathers keys and values in all attention layers of a model, over the ranks of a group."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.model, self.group = model, group
        self.shard = SequenceShard(dist.get_rank(group), dist.get_world_size(group))
        self.attentions = [part for part in model.modules() if isinstance(part, GathersKV)]
        self.rows: list[ShardedRows] = []  # of this batch: of an encoder and of a decoder

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Context in which attention gathers, for a forward and backward pass."""
        for attention in self.attentions:
            attention.gather_kv = self.gather_kv
        try:
            yield
        finally:
            self.rows.clear()
            for attention in self.attentions:
                attention.gather_kv = None

    def gather_kv(self, kv: KV) -> KV:
        """The keys and values of all ranks in the order of the row: (B, K, T, D) -> (B, K, n T, D)."""
        assert kv.pos is not None, "positions of a part of a row are not known without it"
        rows = self._find_rows(kv.pos)
        widths = (kv.k.size(-1), kv.v.size(-1))
        k, v = join_shards(_AllGather.apply(torch.cat([kv.k, kv.v], -1), self.group), 2).split(widths, -1)
        scores = None if torch.compiler.is_compiling() else rows.folded_scores
        return KV(k, v, rows.all_pos, own_mask=rows.mask, folded_scores=scores)

    def _find_rows(self, pos: Tensor) -> ShardedRows:
        """The rows of tokens at pos (B, 1, T), made once for all layers."""
        is_traced = torch.compiler.is_compiling()
        for rows in () if is_traced else self.rows:
            if rows.pos.is_set_to(pos):
                return rows
        rows = ShardedRows(pos, join_shards(_all_gather(pos, self.group), 2), self.shard)
        if not is_traced:
            self.rows.append(rows)
        return rows


class ShardedRows:
    """Positions of a rank's tokens and of all tokens of the same rows: (B, 1, T), (B, 1, S)."""

    def __init__(self, pos: Tensor, all_pos: Tensor, shard: SequenceShard) -> None:
        self.pos, self.all_pos, self.shard = pos, all_pos, shard
        self.masks: dict[tuple[bool, Window | None], Tensor] = {}
        self.folded_scores: dict[tuple[Any, ...], Tensor] = {}  # of these masks, for ``attend``

    def mask(self, causal: bool, window: Window | None) -> Tensor:
        """Which tokens each token of the rank attends to, in its own document: (B, 1, T, S)."""
        if (causal, window) not in self.masks:
            document = (self.all_pos == 0).cumsum(2)
            own_document = self.shard.select(document, dim=2)
            same_document = own_document[..., :, None] == document[..., None, :]
            self.masks[causal, window] = visible(self.pos[:, 0], self.all_pos, causal, window) & same_document
        return self.masks[causal, window]


class _AllGather(torch.autograd.Function):
    """The tensors of all ranks, stacked; the backward pass sums the gradients of each over all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        own_grad = torch.empty_like(grad[0], memory_format=torch.contiguous_format)
        _reduce_scatter_single(own_grad, grad.contiguous().flatten(0, 1), group=ctx.group)
        return own_grad, None


def _all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(...) of each of n ranks -> (n, ...)."""
    out = x.new_empty(dist.get_world_size(group), *x.shape)
    _all_gather_single(out.flatten(0, 1), x.contiguous(), group=group)  # gloo takes no stack
    return out


def find_context_obstacle(config: ModelSpec, task: object) -> str | None:
    """Why the tokens of a row cannot be split, for a model and a task or its class; else None."""
    if not isinstance(task, ShardsSequence):
        return "the loss of the task is not a sum over the tokens of a row"
    attention_names = {ATTENTION.get(name): name for name in ATTENTION.names()}
    for sample in build_sample_layers(config):
        parts = []
        for attention in filter(None, (sample.layer.attn, sample.layer.cross)):
            name = attention_names.get(type(attention), type(attention).__name__)
            parts.append((f"attention {name!r}", attention, isinstance(attention, GathersKV)))
        parts.append((f"block {sample.block!r}", sample.layer, isinstance(sample.layer, Block)))
        for name, part, gathers in parts:
            if part.state is not None:
                return f"{name} passes a state along the row"
            if not gathers:
                return f"{name} does not gather keys and values"
    return None
