"""Which parts of a model learn, and how fast: frozen ones, adapters beside them, rates of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from polyhead.core.i18n import tr
from polyhead.errors import UserError, nearest
from polyhead.models import Classifier
from polyhead.nn.adapter import Adapter
from polyhead.recipe import TrainConfig
from polyhead.sections import AdaptSection


def prepare(model: nn.Module, config: TrainConfig) -> None:
    """Let learn what the settings of a training let learn: adapters are put in, parts are frozen."""
    if config.adapt:
        adapt(model, config.adapt, config.seed)
    freeze(model, config.freeze)


def adapt(model: nn.Module, section: AdaptSection, seed: int) -> None:
    """Put an adapter beside every Linear that is named; of the model nothing else learns but what ``whole`` says.

    A part may be the name of the map (``q_proj``), of something that has such maps (``cross``, ``encoder.stack.layers.0``)
    or both (``attn.q_proj``). The same seed gives the same adapters.
    """
    # tied maps are one module under several names, and stay one
    every = model.named_modules(remove_duplicate=False)
    learned = whole(model, section)
    linears = {name: part for name, part in every if type(part) is nn.Linear and not _under(name, learned)}
    # layers that share their weights have the name of the first, as for train.freeze
    first = {name for name, _ in model.named_modules()}
    known = [name for name in linears if name.rpartition(".")[0] in first]
    for part in section.parts:
        if not any(_within(part, name) for name in known):
            named = sorted({word for name in linears for word in name.split(".") if not word.isdecimal()})
            hint = nearest(part, named) or f"; there are: {', '.join(named) or 'none'}"
            raise UserError(f"train.adapt.parts: no linear map of the model is called {part!r}{hint}")
    chosen = {id(linears[name]) for name in linears if any(_within(p, name) for p in section.parts)}
    linears = {name: part for name, part in linears.items() if id(part) in chosen}
    for name, linear in linears.items():
        if section.rank > (least := min(linear.weight.shape)):
            raise UserError(
                f"train.adapt.rank: {section.rank} is more than {name} has, a matrix of {linear.out_features} x "
                f"{linear.in_features}; at most {least}"
            )
    model.requires_grad_(False)
    for name in learned:
        for parameter in parameters_of(model, name, "train.adapt.learn").values():
            parameter.requires_grad_(True)
    bits = torch.Generator().manual_seed(seed)
    made: dict[int, Adapter] = {}
    for name, linear in linears.items():
        if id(linear) not in made:
            made[id(linear)] = Adapter(
                linear, section.rank, alpha=section.alpha, dropout=section.dropout, bits=bits
            )
        above, _, last = name.rpartition(".")
        setattr(model.get_submodule(above), last, made[id(linear)])


def whole(model: nn.Module, section: AdaptSection) -> tuple[str, ...]:
    """The parts that learn as they are: those named, or else what a classifier has above its encoder."""
    if section.learn is not None:
        return section.learn
    if not isinstance(model, Classifier):
        return ()
    return tuple(
        name for name, part in model.named_children() if name != "encoder" and list(part.parameters())
    )


def must_learn(model: nn.Module, section: AdaptSection, new: Iterable[str]) -> None:
    """Weights that are not in what training begins with must learn: else they would stay as they were drawn."""
    named = whole(model, section)
    if lost := [name for name in new if not _under(name, named)]:
        parts = widest(lost, [name for name, _ in model.named_parameters()])
        raise UserError(
            f"train.adapt: {', '.join(parts)} is new and would never learn; name it: "
            f"train.adapt.learn=[{', '.join([*named, *parts])}]"
        )


def widest(names: Collection[str], every: Iterable[str]) -> list[str]:
    """Some of the weights, those of a part that has no others by the name of the part."""
    others = {part for name in every if name not in names for part in _around(name)}
    return list(dict.fromkeys(next(part for part in _around(name) if part not in others) for name in names))


def _around(name: str) -> list[str]:
    """The parts that a weight is in, the largest first, and itself."""
    words = name.split(".")
    return [".".join(words[: i + 1]) for i in range(len(words))]


def counted(model: nn.Module) -> str:
    """How many parameters a model has, and how many of them learn where not all do."""
    every, learn = (
        sum(p.numel() for p in model.parameters() if p.requires_grad or not some) for some in (False, True)
    )
    if learn < every:
        return tr("{count:,} parameters, {learn:,} of them learn", count=every, learn=learn)
    return tr("{count:,} parameters", count=every)


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Let the parameters of some parts stay as they are; a name that is none is a UserError."""
    for part in parts:
        for parameter in parameters_of(model, part, "train.freeze").values():
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("train.freeze: nothing is left to learn")


def scale_rates(model: nn.Module, optimizers: Iterable[Optimizer], factors: Mapping[str, float]) -> None:
    """Give the parameters of some parts a learning rate of their own; where parts overlap, the longest name counts."""
    of: dict[int, float] = {}
    for part in sorted(factors, key=len):
        if not factors[part] > 0:
            raise UserError(
                f"train.lr_factors: {part} is {factors[part]}, wanted above 0; train.freeze keeps a part as it is"
            )
        parameters = parameters_of(model, part, "train.lr_factors").values()
        if not any(parameter.requires_grad for parameter in parameters):
            raise UserError(
                f"train.lr_factors: nothing of {part} learns, as train.freeze or train.adapt has it, so a factor "
                "changes nothing: leave one of them out"
            )
        of |= {id(parameter): factors[part] for parameter in parameters}
    for optimizer in optimizers if of else ():
        groups = optimizer.param_groups[:]
        optimizer.param_groups.clear()
        for group in groups:
            for factor in sorted({of.get(id(p), 1.0) for p in group["params"]}):
                chosen = [p for p in group["params"] if of.get(id(p), 1.0) == factor]
                optimizer.param_groups.append({**group, "params": chosen, "lr": group["lr"] * factor})


def parameters_of(model: nn.Module, part: str, key: str) -> dict[str, nn.Parameter]:
    """Those under a name, such as ``encoder.embedding`` or ``encoder.stack.layers.0``."""
    every = dict(model.named_parameters())
    found = {name: p for name, p in every.items() if name == part or name.startswith(f"{part}.")}
    if not found:
        prefixes = {
            name.rsplit(".", n)[0] for name in every for n in range(name.count(".") + 1)
        } | every.keys()
        raise UserError(f"{key}: no part of the model is called {part!r}{nearest(part, sorted(prefixes))}")
    return found


def _within(part: str, name: str) -> bool:
    """Whether the words of a part come in a name, one after the other."""
    return f".{part}." in f".{name}."


def _under(name: str, parts: Iterable[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
