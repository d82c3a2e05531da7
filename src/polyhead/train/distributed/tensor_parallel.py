"""Tensor parallelism: the heads and hidden features of every layer, and the vocabulary, split over ranks.

Paper: Shoeybi et al., 2019, sec. 3

Every weight becomes a DTensor on the tensor mesh and keeps its name. Modules read the local part of their
weights, so that they compute with plain tensors, and each split part sums the outputs of all ranks: one
all-reduce forward, and one backward for its input. Activations between the parts are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.models.build import model_class
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding, Head
from polyhead.nn.init import SkipInit
from polyhead.nn.lora import LoraLinear
from polyhead.nn.stack import Stack
from polyhead.nn.tensor_split import (
    FindsSplitObstacle,
    KeepsShard,
    TensorSplit,
    get_tensor_split,
    select_shard,
)
from polyhead.train.distributed.split_modules import (
    REPLICATED_WEIGHT,
    SplitEmbedding,
    SplitHead,
    WeightSplit,
    get_part_class,
    make_split_class,
    make_vocabulary_shard,
)

_LINEAR_SPLITS: dict[str, dict[str, WeightSplit]] = {
    "colwise": {
        "weight": WeightSplit(0),
        "bias": WeightSplit(0),
        "lora_a": WeightSplit(gradient="summed"),
        "lora_b": WeightSplit(0),
    },
    "rowwise": {
        "weight": WeightSplit(1),
        "bias": WeightSplit(gradient="shared"),
        "lora_a": WeightSplit(1),
        "lora_b": WeightSplit(gradient="summed"),
    },
}


def split_tensors(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split a model over the ranks of a mesh of one dimension; all ranks have the same weights before.

    A UserError if some part cannot be split. ``full_tensor()`` of a weight is the whole one.
    """
    plan = _plan_split(model, mesh.size())
    for part in dict.fromkeys(plan.modules):
        if isinstance(part, KeepsShard):
            part.keep_shard(mesh.get_local_rank(), mesh.size())
    for head in plan.heads:
        head.vocabulary = make_vocabulary_shard(len(head.weight), mesh)
    for part in plan.parts:
        part.has_dropout = _has_dropout(part)  # type: ignore[assignment]
    classes: dict[nn.Module, type] = {part: get_part_class(part) for part in plan.parts}
    classes |= dict.fromkeys(plan.embeddings, SplitEmbedding) | dict.fromkeys(plan.heads, SplitHead)
    parameters: dict[int, nn.Parameter] = {}  # tied ones are one
    module: Any
    for module in list(model.modules()):
        weights = {name: plan.weights[module, name] for name, _ in module.named_parameters(recurse=False)}
        for name, weight_split in weights.items():
            old = module.get_parameter(name)
            if id(old) not in parameters:
                parameters[id(old)] = _shard_parameter(old, weight_split.dim, mesh)
        replacements = {name: parameters[id(module.get_parameter(name))] for name in weights}
        module._parameters.update(replacements)
        if weights or module in classes:
            roles = (classes[module],) if module in classes else ()
            module.__class__ = make_split_class(type(module), roles, tuple(weights.items()), mesh)  # type: ignore[arg-type]


def find_tensor_obstacle(config: ModelConfig, size: int) -> str | None:
    """The reason why a model cannot be split over ``size`` ranks; None if it can."""
    with torch.device("meta"), SkipInit():
        model = model_class(config)(config)
    try:
        _plan_split(model, size)
    except UserError as error:
        return str(error)
    return None


class _Plan(NamedTuple):
    """How each weight of a model is read, and the modules that take part in another way than by weights."""

    weights: dict[tuple[nn.Module, str], WeightSplit]
    parts: list[nn.Module]  # split parts, whose outputs are summed
    modules: list[nn.Module]  # all modules of split parts
    embeddings: list[nn.Module]
    heads: list[Head]


def _plan_split(model: nn.Module, size: int) -> _Plan:
    """Decide for all weights of a model; a UserError with the reason if some part cannot be split."""
    plan = _Plan({}, [], [], [], [])
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for block in stack.layers:
            block_split = _require_split(block)
            for name in block_split.parts:
                part = getattr(block, name, None)
                if part is not None and part not in plan.parts:
                    plan.parts.append(part)
                    _plan_part(part, size, plan)
    for module in model.modules():
        if isinstance(module, Embedding):
            plan.embeddings.append(module.token)
            plan.weights[module.token, "weight"] = WeightSplit(0)
        elif isinstance(module, Head):
            plan.heads.append(module)
            for name, _ in module.named_parameters():
                plan.weights[module, name] = WeightSplit(0)
            n_tokens = len(module.weight)
            if (size - 1) * -(-n_tokens // size) >= n_tokens:
                raise UserError(f"a vocabulary of {n_tokens} tokens is too small for {size} ranks")
    for module in model.modules():
        for name, _ in module.named_parameters(recurse=False):
            plan.weights.setdefault((module, name), REPLICATED_WEIGHT)
    return plan


def _require_split(part: nn.Module) -> TensorSplit:
    split = get_tensor_split(part)
    if split is None:
        raise UserError(f"{_name_of(part)} does not declare how it splits over ranks: set its tensor_split")
    return split


def _plan_part(part: nn.Module, size: int, plan: _Plan) -> None:
    """Decide for the weights of a part with a declaration, and of those inside."""
    split = _require_split(part)
    for path, module, is_inner_part in _walk_part(part, split):
        if is_inner_part:
            if module not in plan.modules:
                _plan_part(module, size, plan)
            continue
        plan.modules.append(module)
        if isinstance(module, FindsSplitObstacle) and (obstacle := module.find_split_obstacle(size)):
            raise UserError(obstacle)
        for name, weight in module.named_parameters(recurse=False):
            weight_name = f"{path}.{name}" if path else name
            weight_split = _find_weight_split(split, weight_name, module)
            if weight_split is None:
                raise UserError(f"tensor_split of {_name_of(part)} does not name its weight {weight_name}")
            plan.weights[module, name] = weight_split
            if weight_split.dim is not None and weight.size(weight_split.dim) % size:
                n = weight.size(weight_split.dim)
                raise UserError(
                    f"the {n} features of {_name_of(part)} cannot be divided by {size}: tensor must divide "
                    "their number"
                )


def _walk_part(part: nn.Module, split: TensorSplit, path: str = "") -> Iterator[tuple[str, nn.Module, bool]]:
    """The modules of a part by path, and whether each is a part with a declaration of its own."""
    yield path, part, False
    for name, child in part.named_children():
        child_path = f"{path}.{name}" if path else name
        if child_path in split.parts:
            inner_parts = child if isinstance(child, nn.ModuleList) else [child]
            yield from ((child_path, inner, True) for inner in inner_parts)
        elif get_tensor_split(child) is not None:
            yield child_path, child, True
        else:
            yield from _walk_part(child, split, child_path)


def _find_weight_split(split: TensorSplit, weight_name: str, module: nn.Module) -> WeightSplit | None:
    """The split that a declaration has for a weight of a module; None if it names neither."""
    names = weight_name.split(".")
    prefixes = {".".join(names[: n + 1]) for n in range(len(names))}
    if weight_name in split.shard_dims:
        return WeightSplit(split.shard_dims[weight_name])
    for kind, maps in (("colwise", split.colwise), ("rowwise", split.rowwise)):
        if prefixes & {*maps} and isinstance(module, nn.Linear | nn.Conv1d | LoraLinear):
            return _LINEAR_SPLITS[kind].get(names[-1])
    if prefixes & {*split.partial_grads}:
        return WeightSplit(gradient="summed")
    return REPLICATED_WEIGHT if prefixes & {*split.replicated_weights} else None


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
    rate = getattr(part, "dropout", 0)  # of attention, a number
    return (isinstance(rate, float) and rate > 0) or any(
        isinstance(module, Dropout | nn.modules.dropout._DropoutNd) and module.p > 0
        for module in part.modules()
    )
