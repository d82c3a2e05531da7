"""Tensor parallelism: the heads and hidden features of every layer, and the vocabulary, sharded over ranks.

Paper: Shoeybi et al., 2019, sec. 3

Every weight becomes a DTensor on the tensor mesh and keeps its name. Modules read the local part of their
weights, so that they compute with plain tensors, and each sharded part sums the outputs of all ranks: one
all-reduce forward, and one backward for its input. Activations between the parts are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.models.build import model_class
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding, Head
from polyhead.nn.init import SkipInit
from polyhead.nn.lora import LoraLinear
from polyhead.nn.override import replace_modules
from polyhead.nn.shard_plan import FindsShardObstacle, KeepsShard, ShardPlan, get_shard_plan, select_shard
from polyhead.nn.stack import Stack
from polyhead.train.distributed.sharded_modules import (
    REPLICATED_WEIGHT,
    ShardedEmbedding,
    ShardedHead,
    WeightShard,
    get_part_class,
    make_sharded_class,
    make_vocabulary_shard,
)

_LINEAR_SHARDS: dict[str, dict[str, WeightShard]] = {
    "colwise": {
        "weight": WeightShard(0),
        "bias": WeightShard(0),
        "lora_a": WeightShard(gradient="summed"),
        "lora_b": WeightShard(0),
    },
    "rowwise": {
        "weight": WeightShard(1),
        "bias": WeightShard(gradient="shared"),
        "lora_a": WeightShard(1),
        "lora_b": WeightShard(gradient="summed"),
    },
}


def shard_tensors(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a model over the ranks of a mesh of one dimension; all ranks have the same weights before.

    A UserError if some part cannot be sharded. ``full_tensor()`` of a weight gathers it.
    """
    plan = _plan_shards(model, mesh.size())
    for part in dict.fromkeys(plan.modules):
        if isinstance(part, KeepsShard):
            part.keep_shard(mesh.get_local_rank(), mesh.size())
    for head in plan.heads:
        head.vocabulary = make_vocabulary_shard(len(head.weight), mesh)
    for part in plan.parts:
        cast(Any, part).has_dropout = _has_dropout(part)
    classes: dict[nn.Module, type] = {part: get_part_class(part) for part in plan.parts}
    classes |= dict.fromkeys(plan.embeddings, ShardedEmbedding) | dict.fromkeys(plan.heads, ShardedHead)
    parameters: dict[int, nn.Parameter] = {}  # tied ones are one
    sharded: dict[nn.Module, type[nn.Module]] = {}
    for module in model.modules():
        weights = {name: plan.weights[module, name] for name, _ in module.named_parameters(recurse=False)}
        for name, weight_shard in weights.items():
            old = module.get_parameter(name)
            if id(old) not in parameters:
                parameters[id(old)] = _shard_parameter(old, weight_shard.dim, mesh)
        replacements = {name: parameters[id(module.get_parameter(name))] for name in weights}
        module._parameters.update(replacements)
        if weights or module in classes:
            roles = (classes[module],) if module in classes else ()
            base: Any = type(module)
            sharded[module] = make_sharded_class(base, roles, tuple(weights.items()), mesh)
    replace_modules(model, sharded)


def find_tensor_obstacle(config: ModelConfig, size: int) -> str | None:
    """The reason why a model cannot be sharded over ``size`` ranks; None if it can."""
    with torch.device("meta"), SkipInit():
        model = model_class(config)(config)
    try:
        _plan_shards(model, size)
    except UserError as error:
        return str(error)
    return None


class _Plan(NamedTuple):
    """How each weight of a model is read, and the modules that take part in another way than by weights."""

    weights: dict[tuple[nn.Module, str], WeightShard]
    parts: list[nn.Module]  # sharded parts, whose outputs are summed
    modules: list[nn.Module]  # all modules of sharded parts
    embeddings: list[nn.Module]
    heads: list[Head]


def _plan_shards(model: nn.Module, size: int) -> _Plan:
    """Decide for all weights of a model; a UserError with the reason if some part cannot be sharded."""
    plan = _Plan({}, [], [], [], [])
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for block in stack.layers:
            block_plan = _require_shard_plan(block)
            for name in block_plan.parts:
                part = getattr(block, name, None)
                if part is not None and part not in plan.parts:
                    plan.parts.append(part)
                    _plan_part(part, size, plan)
    for module in model.modules():
        if isinstance(module, Embedding):
            plan.embeddings.append(module.token)
            plan.weights[module.token, "weight"] = WeightShard(0)
        elif isinstance(module, Head):
            plan.heads.append(module)
            for name, _ in module.named_parameters():
                plan.weights[module, name] = WeightShard(0)
            n_tokens = len(module.weight)
            # a shard has ceil(n / size) tokens, so the last rank would have none
            if (size - 1) * -(-n_tokens // size) >= n_tokens:
                raise UserError(f"a vocabulary of {n_tokens} tokens is too small for {size} ranks")
    # what no part names, such as the norms between them, all ranks have and update alike
    for module in model.modules():
        for name, _ in module.named_parameters(recurse=False):
            plan.weights.setdefault((module, name), REPLICATED_WEIGHT)
    return plan


def _require_shard_plan(part: nn.Module) -> ShardPlan:
    plan = get_shard_plan(part)
    if plan is None:
        raise UserError(f"{_name_of(part)} does not declare how it splits over ranks: set its shard_plan")
    return plan


def _plan_part(part: nn.Module, size: int, plan: _Plan) -> None:
    """Decide for the weights of a part with a declaration, and of those inside."""
    shard_plan = _require_shard_plan(part)
    for path, module, is_inner_part in _walk_part(part, shard_plan):
        if is_inner_part:
            if module not in plan.modules:
                _plan_part(module, size, plan)
            continue
        plan.modules.append(module)
        if isinstance(module, FindsShardObstacle) and (obstacle := module.find_shard_obstacle(size)):
            raise UserError(obstacle)
        for name, weight in module.named_parameters(recurse=False):
            weight_name = f"{path}.{name}" if path else name
            weight_shard = _find_weight_shard(shard_plan, weight_name, module)
            if weight_shard is None:
                raise UserError(f"shard_plan of {_name_of(part)} does not name its weight {weight_name}")
            plan.weights[module, name] = weight_shard
            if weight_shard.dim is not None and weight.size(weight_shard.dim) % size:
                n = weight.size(weight_shard.dim)
                raise UserError(
                    f"the {n} features of {_name_of(part)} cannot be divided by {size}: tensor must divide "
                    "their number"
                )


def _walk_part(part: nn.Module, plan: ShardPlan, path: str = "") -> Iterator[tuple[str, nn.Module, bool]]:
    """The modules of a part by path, and whether each is a part with a declaration of its own."""
    yield path, part, False
    for name, child in part.named_children():
        child_path = f"{path}.{name}" if path else name
        if child_path in plan.parts:
            inner_parts = child if isinstance(child, nn.ModuleList) else [child]
            yield from ((child_path, inner, True) for inner in inner_parts)
        elif get_shard_plan(child) is not None:
            yield child_path, child, True
        else:
            yield from _walk_part(child, plan, child_path)


def _find_weight_shard(plan: ShardPlan, weight_name: str, module: nn.Module) -> WeightShard | None:
    """How a plan shards a weight of a module; None if it names neither."""
    names = weight_name.split(".")
    prefixes = {".".join(names[: n + 1]) for n in range(len(names))}
    if weight_name in plan.shard_dims:
        return WeightShard(plan.shard_dims[weight_name])
    for kind, maps in (("colwise", plan.colwise), ("rowwise", plan.rowwise)):
        if prefixes & {*maps} and isinstance(module, nn.Linear | nn.Conv1d | LoraLinear):
            return _LINEAR_SHARDS[kind].get(names[-1])
    if prefixes & {*plan.partial_grads}:
        return WeightShard(gradient="summed")
    return REPLICATED_WEIGHT if prefixes & {*plan.replicated_weights} else None


def _name_of(part: nn.Module) -> str:
    return type(part).__name__


def _shard_parameter(old: nn.Parameter, dim: int | None, mesh: DeviceMesh) -> nn.Parameter:
    """The parameter as a DTensor, of which this rank has its shard."""
    local = old.detach()
    if dim is not None:
        index = [slice(None)] * dim + [select_shard(old.size(dim), mesh.get_local_rank(), mesh.size())]
        local = local[tuple(index)].clone(memory_format=torch.contiguous_format)
    placement = Replicate() if dim is None else Shard(dim)
    distributed = DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=old.shape, stride=old.contiguous().stride()
    )
    return nn.Parameter(distributed, old.requires_grad)


def _has_dropout(part: nn.Module) -> bool:
    return (isinstance(part, Attention) and part.dropout > 0) or any(
        isinstance(module, Dropout | nn.modules.dropout._DropoutNd) and module.p > 0
        for module in part.modules()
    )
