"""Tensor parallelism: the heads and hidden features of every layer, and the vocabulary, split over ranks.

Paper: Shoeybi et al., 2019, sec. 3

Every weight becomes a DTensor on the tensor mesh and keeps its name. Modules read the local part of their
weights, so that they compute with plain tensors, and each split part sums the outputs of all ranks: one
all-reduce forward, and one backward for its input. Activations between the parts are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.models.build import model_class
from polyhead.nn.dropout import Dropout
from polyhead.nn.embedding import Embedding
from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.nn.lm_head import Head
from polyhead.nn.lora import LoraLinear
from polyhead.nn.skip_init import SkipInit
from polyhead.nn.stack import Stack
from polyhead.nn.tensor_split import (
    FindsSplitObstacle,
    KeepsShard,
    TensorSplit,
    VocabularyShard,
    get_tensor_split,
    select_shard,
)

GradientKind = Literal["local", "summed", "shared"]
"""The gradient of a weight.

local: as computed on the rank; summed: over the ranks, each of which applies a replicated weight to its own
heads or features; shared: as local, of a bias that each rank adds 1/n of, before outputs are summed.
"""


class WeightSplit(NamedTuple):
    """How a rank reads one weight."""

    dim: int | None = None  # the dimension that is split; None if the weight is replicated
    gradient: GradientKind = "local"


REPLICATED = WeightSplit()
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
    rank, size = mesh.get_local_rank(), mesh.size()
    plan = _plan_split(model, size)
    parameters: dict[int, nn.Parameter] = {}
    for (module, name), weight_split in plan.weights.items():
        old = module._parameters[name]
        assert old is not None
        if id(old) not in parameters:
            parameters[id(old)] = _shard_parameter(old, weight_split.dim, mesh)
    for part in plan.modules:
        if isinstance(part, KeepsShard):
            part.keep_shard(rank, size)
    roles: dict[nn.Module, tuple[type, ...]] = {part: (_role_of(part),) for part in plan.parts}
    for token in plan.embeddings:
        roles[token] = (_SplitEmbedding,)
    for head in plan.heads:
        roles[head] = (_SplitHead,)
        assert isinstance(head, Head)
        tokens, group = select_shard(len(head.weight), rank, size), mesh.get_group()
        head.vocabulary = VocabularyShard(
            tokens, len(head.weight), partial(_all_reduce, group=group), partial(_sum_gradient, group=group)
        )
    for module in list(model.modules()):
        weights = {
            name: plan.weights[module, name]
            for name, p in module._parameters.items()
            if p is not None and (module, name) in plan.weights
        }
        for name in weights:
            old = module._parameters[name]
            module._parameters[name] = parameters[id(old)]
        if weights or module in roles:
            if module in roles and issubclass(roles[module][0], _SplitPart):
                module.has_dropout = _has_dropout(module)  # type: ignore[assignment]
            module.__class__ = _make_class(type(module), roles.get(module, ()), tuple(weights.items()), mesh)


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
    heads: list[nn.Module]


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
            plan.weights.setdefault((module, name), REPLICATED)
    return plan


def _require_split(part: nn.Module) -> TensorSplit:
    split = get_tensor_split(part)
    if split is None:
        raise UserError(f"{_name_of(part)} does not declare how it splits over ranks: set its tensor_split")
    return split


def _plan_part(part: nn.Module, size: int, plan: _Plan) -> None:
    """Decide for the weights of a part with a declaration, and of those inside."""
    split = _require_split(part)
    for path, module in part.named_modules():
        names = path.split(".")
        prefixes = {".".join(names[: n + 1]) for n in range(len(names))}
        if path and (get_tensor_split(module) is not None or prefixes & {*split.parts}):
            continue
        plan.modules.append(module)
        if isinstance(module, FindsSplitObstacle) and (obstacle := module.find_split_obstacle(size)):
            raise UserError(obstacle)
        for name, weight in module.named_parameters(recurse=False):
            weight_split = _find_weight_split(split, path, name, module)
            if weight_split is None:
                raise UserError(f"tensor_split of {_name_of(part)} does not name its weight {path}.{name}")
            plan.weights[module, name] = weight_split
            if weight_split.dim is not None and weight.size(weight_split.dim) % size:
                n = weight.size(weight_split.dim)
                raise UserError(f"the {n} features of {_name_of(part)} cannot be divided by {size}")
    inner = [
        module
        for name in split.parts
        if (child := getattr(part, name, None)) is not None
        for module in (child if isinstance(child, nn.ModuleList) else [child])
    ]
    declared = [module for module in _find_declared(part) if module not in inner]
    for module in (*inner, *declared):
        if module not in plan.modules:
            _plan_part(module, size, plan)


def _find_declared(part: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules inside a part with a declaration of their own."""
    for child in part.children():
        if get_tensor_split(child) is not None:
            yield child
        else:
            yield from _find_declared(child)


def _find_weight_split(split: TensorSplit, path: str, name: str, module: nn.Module) -> WeightSplit | None:
    """What a declaration says of the weight ``name`` of the module at ``path`` in its part."""
    own_name = f"{path}.{name}" if path else name
    names = own_name.split(".")
    prefixes = {".".join(names[: n + 1]) for n in range(len(names))}
    if own_name in split.sharded:
        return WeightSplit(split.sharded[own_name])
    for kind, maps in (("colwise", split.colwise), ("rowwise", split.rowwise)):
        if prefixes & {*maps} and isinstance(module, nn.Linear | nn.Conv1d | LoraLinear):
            return _LINEAR_SPLITS[kind].get(name)
    if prefixes & {*split.summed}:
        return WeightSplit(gradient="summed")
    return REPLICATED if prefixes & {*split.replicated} else None


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


# --- modules of a split model: subclasses of their own classes, made for each kind of split ---


@cache
def _make_class(
    base: type, roles: tuple[type, ...], weights: tuple[tuple[str, WeightSplit], ...], mesh: DeviceMesh
) -> type:
    """A subclass whose attributes of weights are their local parts; parameters and names are the same."""
    attributes: dict[str, Any] = {
        name: property(partial(_read_weight, name=name, weight_split=weight_split))
        for name, weight_split in weights
    }
    if issubclass(base, nn.RNNBase):
        attributes["_flat_weights"] = property(_read_flat_weights, lambda module, value: None)
    attributes |= {"tensor_mesh": mesh, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (*roles, base), attributes)


def _read_weight(module: nn.Module, *, name: str, weight_split: WeightSplit) -> Tensor | None:
    weight = module._parameters[name]
    if not isinstance(weight, DTensor):
        return weight
    local: Tensor = weight.to_local()
    if weight_split.gradient == "summed":
        return _sum_gradient(local, weight.device_mesh.get_group())
    return _share(local, weight.device_mesh.size()) if weight_split.gradient == "shared" else local


def _read_flat_weights(module: nn.RNNBase) -> list[Tensor]:
    return [getattr(module, name) for name in module._flat_weights_names]


class _SplitPart(nn.Module):
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
        return _sum_gradient(x, self.tensor_mesh.get_group())

    def sum_outputs(self, x: Tensor) -> Tensor:
        """The output, summed over the ranks."""
        return _sum_outputs(x, self.tensor_mesh.get_group())

    def draw_own_dropout(self) -> AbstractContextManager[None]:
        """Context in which ranks draw different random numbers; after it they draw the same again."""
        if not (self.training and self.has_dropout):
            return nullcontext()
        return _fork_random(self.tensor_mesh)


class _SplitAttention(_SplitPart):
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


class _SplitExperts(_SplitPart):
    """A mixture of experts with some of their features, and with the whole router."""

    def route(self, tokens: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        """As the mixture itself. All ranks compute the same scores, so each has a share of the gradient."""
        routed: Any = super()
        expert_ids, weights = routed.route(_divide_gradient(tokens, self.tensor_mesh.size()), *args)
        return expert_ids, self.sum_gradient(weights)


class _SplitEmbedding(nn.Embedding):
    """Rows of some tokens; the vectors of the others come from the other ranks."""

    tensor_mesh: DeviceMesh

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., E)."""
        weight = self.weight
        own = select_shard(self.num_embeddings, self.tensor_mesh.get_local_rank(), self.tensor_mesh.size())
        is_elsewhere = (tokens < own.start) | (tokens >= own.stop)
        vectors = F.embedding((tokens - own.start).masked_fill(is_elsewhere, 0), weight)
        vectors = vectors.masked_fill(is_elsewhere[..., None], 0)
        return _sum_outputs(vectors, self.tensor_mesh.get_group())


class _SplitHead(Head):
    """The logits of some tokens; the loss needs no others."""

    tensor_mesh: DeviceMesh

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., V): the logits of all tokens, for what is not a loss."""
        shard = self.vocabulary
        assert shard is not None
        logits = super().forward(shard.sum_gradient(x))
        padded = F.pad(logits, (shard.tokens.start, shard.vocab_size - shard.tokens.stop))
        return _sum_outputs(padded, self.tensor_mesh.get_group())


def _role_of(part: nn.Module) -> type:
    if isinstance(part, MixtureOfExperts):
        return _SplitExperts
    return _SplitAttention if hasattr(part, "project_kv") else _SplitPart


@contextmanager
def _fork_random(mesh: DeviceMesh) -> Iterator[None]:
    """Seed the generators by the rank, and by a number that all ranks draw; restore them at the end."""
    common = int(torch.randint(2**62, (), device="cpu"))
    seed = np.random.SeedSequence([common, mesh.get_local_rank()]).generate_state(1, np.uint64)[0]
    devices = [] if mesh.device_type == "cpu" else [torch.accelerator.current_device_index()]
    with torch.random.fork_rng(devices, device_type=mesh.device_type):
        torch.manual_seed(int(seed))
        yield


# --- sums over the ranks, as autograd functions ---


def _all_reduce(x: Tensor, operation: str, group: Any) -> Tensor:
    reduced: Tensor = funcol.wait_tensor(funcol.all_reduce(x.contiguous(), operation, group))
    return reduced


def _sum_gradient(x: Tensor, group: Any) -> Tensor:
    out: Tensor = _SumGradient.apply(x, group)
    return out


def _sum_outputs(x: Tensor, group: Any) -> Tensor:
    out: Tensor = _SumOutputs.apply(x, group)
    return out


def _share(x: Tensor, size: int) -> Tensor:
    out: Tensor = _Share.apply(x, size)
    return out


def _divide_gradient(x: Tensor, size: int) -> Tensor:
    out: Tensor = _DivideGradient.apply(x, size)
    return out


class _SumGradient(torch.autograd.Function):
    """The identity, whose gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(grad, "sum", ctx.group), None


class _SumOutputs(torch.autograd.Function):
    """The sum over the ranks, which all have the same gradient of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return _all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Share(torch.autograd.Function):
    """x / n, which n ranks add up to x; all have the same gradient, that of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        return x / size

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _DivideGradient(torch.autograd.Function):
    """The identity with 1/n of the gradient, for what n ranks compute alike and sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int) -> Tensor:
        ctx.size = size
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.size, None
