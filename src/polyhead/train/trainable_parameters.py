"""Trainable parameters of a model: freezing, LoRA adapters, and learning rate factors by module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from polyhead.config.config_sections import LoraConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.errors import UserError, did_you_mean
from polyhead.core.i18n import tr
from polyhead.kernels.int_linear import GROUP_SIZE, Int4
from polyhead.kernels.malloc_tuning import trim_heap
from polyhead.models import Classifier, TokenClassifier
from polyhead.nn.int4_linear import GROUP_BYTES, Int4Linear, count_weights
from polyhead.nn.lora import LoraLinear


def prepare_trainable(model: nn.Module, config: TrainConfig) -> None:
    """Set the trainable parameters from the config: add LoRA adapters, freeze modules."""
    if config.lora:
        quantize_base(model, config.lora)
        add_lora(model, config.lora, config.seed)
    freeze(model, config.freeze)


@torch.no_grad()
def quantize_base(model: nn.Module, lora: LoraConfig) -> None:
    """Pack each Linear that will be frozen to 4 bits if ``lora.base`` is int4; others are left as they are.

    A UserError if one has inputs that are no multiple of 32.
    """
    trained_modules, linears = modules_to_save(model, lora), dict[str, nn.Linear]()
    for name, linear in model.named_modules(remove_duplicate=False) if lora.base == "int4" else ():
        if type(linear) is not nn.Linear or _is_under(name, trained_modules):
            continue
        if linear.in_features % GROUP_SIZE:
            raise UserError(
                f"train.lora.base: {name} has {linear.in_features} inputs, and int4 needs a multiple of "
                f"{GROUP_SIZE}; set train.lora.base=fp32"
            )
        linears[name] = linear

    def pack(linear: nn.Linear) -> Int4Linear:
        weight, n_bytes = linear.weight, linear.in_features // GROUP_SIZE * GROUP_BYTES + 4
        data = weight.new_empty((len(weight), n_bytes), dtype=torch.uint8)
        return Int4Linear(linear, data if weight.is_meta else data.copy_(Int4(weight).to_bytes()))

    _replace_named(model, linears, pack)
    if linears:
        linears.clear()
        trim_heap()


def _replace_named(
    model: nn.Module, linears: Mapping[str, nn.Linear], make: Callable[[nn.Linear], nn.Module]
) -> None:
    """Put ``make`` of each module in its place; of one with several names, as it is tied, there is one."""
    made: dict[int, nn.Module] = {}
    for name, linear in linears.items():
        if id(linear) not in made:
            made[id(linear)] = make(linear)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[id(linear)])


def add_lora(model: nn.Module, lora: LoraConfig, seed: int) -> None:
    """Add a LoRA adapter to every Linear in ``lora.parts``; freeze all else except ``modules_to_save``.

    A part may be the name of the Linear (``q_proj``), of a module that contains it (``cross``,
    ``encoder.stack.layers.0``), or both (``attn.q_proj``). The same seed gives the same adapters.
    """
    # tied Linears are one module under several names, and share one adapter
    modules = model.named_modules(remove_duplicate=False)
    trained_modules = modules_to_save(model, lora)
    linears = {
        name: part
        for name, part in modules
        if type(part) in (nn.Linear, Int4Linear) and not _is_under(name, trained_modules)
    }
    # layers with shared weights go by the name of the first, as for train.freeze
    unique_names = {name for name, _ in model.named_modules()}
    linear_names = [name for name in linears if name.rpartition(".")[0] in unique_names]
    for part in lora.target_modules:
        if not any(_is_within(part, name) for name in linear_names):
            words = sorted({word for name in linears for word in name.split(".") if not word.isdecimal()})
            hint = did_you_mean(part, words) or f"; known: {', '.join(words) or 'none'}"
            raise UserError(
                f"train.lora.target_modules: no linear layer of the model is named {part!r}{hint}"
            )
    chosen_ids = {
        id(linears[name]) for name in linears if any(_is_within(p, name) for p in lora.target_modules)
    }
    linears = {name: part for name, part in linears.items() if id(part) in chosen_ids}
    for name, linear in linears.items():
        if lora.r > (max_rank := min(linear.in_features, linear.out_features)):
            raise UserError(
                f"train.lora.r: {lora.r} is more than {name} has, a matrix of {linear.out_features} x "
                f"{linear.in_features}; at most {max_rank}"
            )
    model.requires_grad_(False)
    for name in trained_modules:
        for parameter in select_parameters(model, name, "train.lora.modules_to_save").values():
            parameter.requires_grad_(True)
    rng = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"alpha": lora.alpha, "dropout": lora.dropout, "generator": rng}
    _replace_named(model, linears, lambda linear: LoraLinear(linear, lora.r, **options))


def modules_to_save(model: nn.Module, lora: LoraConfig) -> tuple[str, ...]:
    """Modules trained in full: ``lora.modules_to_save``, by default all modules of a classifier except its
    encoder.
    """
    if lora.modules_to_save is not None:
        return lora.modules_to_save
    if not isinstance(model, Classifier | TokenClassifier):
        return ()
    return tuple(
        name for name, part in model.named_children() if name != "encoder" and list(part.parameters())
    )


def check_new_weights(model: nn.Module, lora: LoraConfig, new_names: Iterable[str]) -> None:
    """Raise a UserError if new weights (not in the run to start from) would stay random, untrained."""
    trained_modules = modules_to_save(model, lora)
    if untrained := [name for name in new_names if not _is_under(name, trained_modules)]:
        parts = group_by_module(untrained, [name for name, _ in model.named_parameters()])
        raise UserError(
            f"train.lora: {', '.join(parts)} is new and would not be trained; add it: "
            f"train.lora.modules_to_save=[{', '.join([*trained_modules, *parts])}]"
        )


def group_by_module(names: Collection[str], all_names: Iterable[str]) -> list[str]:
    """Names of weights, grouped: a module with no other weights is listed by the module's name."""
    mixed_modules = {part for name in all_names if name not in names for part in _module_prefixes(name)}
    return list(
        dict.fromkeys(
            next(part for part in _module_prefixes(name) if part not in mixed_modules) for name in names
        )
    )


def _module_prefixes(name: str) -> list[str]:
    """The names of the modules that contain a weight, outermost first, and of the weight itself."""
    words = name.split(".")
    return [".".join(words[: i + 1]) for i in range(len(words))]


def parameter_summary(model: nn.Module) -> str:
    """Number of parameters of a model, and of the trainable ones if not all are."""
    total, trainable = (
        sum(count_weights(p) for p in model.parameters() if p.requires_grad or not trainable_only)
        for trainable_only in (False, True)
    )
    if trainable < total:
        return tr("{count:,} parameters, {learn:,} trainable", count=total, learn=trainable)
    return tr("{count:,} parameters", count=total)


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Freeze the parameters of some modules; a UserError for an unknown name."""
    for part in parts:
        for parameter in select_parameters(model, part, "train.freeze").values():
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("train.freeze: no trainable parameters are left")


def scale_rates(model: nn.Module, optimizers: Iterable[Optimizer], factors: Mapping[str, float]) -> None:
    """Scale the learning rates of some modules; where modules overlap, the longest name counts."""
    factor_of: dict[int, float] = {}
    for part in sorted(factors, key=len):
        if not factors[part] > 0:
            raise UserError(
                f"train.lr_factors: {part} is {factors[part]}, expected above 0; to freeze a part use "
                "train.freeze"
            )
        parameters = select_parameters(model, part, "train.lr_factors").values()
        if not any(parameter.requires_grad for parameter in parameters):
            raise UserError(
                f"train.lr_factors: {part} has no trainable parameters, because of train.freeze or "
                "train.lora: remove one of them"
            )
        factor_of |= {id(parameter): factors[part] for parameter in parameters}
    for optimizer in optimizers if factor_of else ():
        groups = optimizer.param_groups[:]
        optimizer.param_groups.clear()
        for group in groups:
            for factor in sorted({factor_of.get(id(p), 1.0) for p in group["params"]}):
                params = [p for p in group["params"] if factor_of.get(id(p), 1.0) == factor]
                optimizer.param_groups.append({**group, "params": params, "lr": group["lr"] * factor})


def select_factors(model: nn.Module, factors: Mapping[str, float]) -> dict[str, float]:
    """The factors of those modules that have trainable parameters in this model."""
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {
        part: factor for part, factor in factors.items() if any(_is_under(name, [part]) for name in trainable)
    }


def select_parameters(model: nn.Module, part: str, key: str) -> dict[str, nn.Parameter]:
    """Parameters under a module name, such as ``encoder.embedding`` or ``encoder.stack.layers.0``."""
    all_params = dict(model.named_parameters())
    selected_params = {
        name: p for name, p in all_params.items() if name == part or name.startswith(f"{part}.")
    }
    if not selected_params:
        prefixes = {
            name.rsplit(".", n)[0] for name in all_params for n in range(name.count(".") + 1)
        } | all_params.keys()
        raise UserError(
            f"{key}: no part of the model is named {part!r}{did_you_mean(part, sorted(prefixes))}"
        )
    return selected_params


def _is_within(part: str, name: str) -> bool:
    """Whether the dotted name ``part`` is a consecutive part of the dotted name ``name``."""
    return f".{part}." in f".{name}."


def _is_under(name: str, parts: Iterable[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
