"""Beginning with trained weights: fine-tuning, and students made of their teacher's layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn
from torch.optim import Optimizer

from polyhead.config import ModelSection
from polyhead.errors import UserError, explain, nearest
from polyhead.loading import load
from polyhead.nn.weights import weights
from polyhead.recipe import Recipe
from polyhead.run import Run

LAYER = re.compile(r"(.*\.layers\.)(\d+)(\..*)")
# what may not be new in a model that was begun with
INSIDE = re.compile(r".*(embedding\.(token|position)|\.layers\.\d+)\..*")


def open_start(recipe: Recipe) -> Run | None:
    """The run that a recipe begins with. One that is gone is only missed where the recipe does not say all by itself."""
    if recipe.start is None:
        return None
    if _complete(recipe) and not Path(recipe.start.run).exists():
        return None
    return load(recipe.start.run)


def resolved(recipe: Recipe, origin: Run | None) -> Recipe:
    """The recipe with the model of ``origin``, where it says nothing else itself."""
    if origin is None or recipe.start is None or _complete(recipe):
        return recipe
    own, every = origin.config, recipe.start.every
    if own.kind != recipe.model.kind:
        raise UserError(
            f"start.run: {recipe.start.run} is of kind {own.kind!r}, and task {recipe.task.name!r} trains {recipe.model.kind!r}"
        )
    if "tokenizer" in recipe.model_fields_set:
        raise UserError(
            "tokenizer: it comes with start.run, so that the model knows its tokens; leave it out"
        )
    fields = own.model_dump(exclude={"vocab_size", "labels"}) | {"head": True}
    fields |= {name: -(-fields[name] // every) for name in ("n_layers", "n_decoder_layers")}
    fields |= {name: getattr(recipe.model, name) for name in recipe.model.model_fields_set}
    try:
        return recipe.model_copy(update={"model": ModelSection.model_validate(fields)})
    except ValidationError as error:
        raise explain(error, ModelSection, "model, with that of start.run") from None


@torch.no_grad()
def begin(model: Any, origin: Run, every: int = 1) -> str:
    """Copy the weights of ``origin`` into a model, layer i from layer ``every`` * i; returns a line that says what is new.

    Embeddings and layers must all be there and fit; a head or pooler may be new, and one for other classes is.
    """
    given, wanted = weights(origin.model), weights(model)
    if model.config.labels != origin.config.labels:
        given = {name: tensor for name, tensor in given.items() if not name.startswith("classifier.")}
    source = {name: LAYER.sub(lambda m: f"{m[1]}{int(m[2]) * every}{m[3]}", name) for name in wanted}
    wrong = [f"{source[name]} {list(given[source[name]].shape)}, wanted {list(tensor.shape)}"
             for name, tensor in wanted.items() if source[name] in given and given[source[name]].shape != tensor.shape]  # fmt: skip
    missing = [source[name] for name in wanted if source[name] not in given]
    if lost := [name for name in missing if INSIDE.match(name)]:
        wrong += [f"{name} is not there" for name in lost]
    if wrong:
        raise UserError(f"start.run: its weights do not fit the model: {'; '.join(wrong[:8])}")
    for name, tensor in wanted.items():
        if source[name] in given:
            tensor.copy_(given[source[name]])
    new = sorted(name for name in wanted if source[name] not in given)
    left = sorted(given.keys() - set(source.values())) if every == 1 else []
    said = f"begun with {len(wanted) - len(new)} of {len(wanted)} weights"
    said += f"; new: {', '.join(new)}" if new else ""
    return said + (f"; not taken: {', '.join(left)}" if left else "")


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Let the parameters of some parts stay as they are; a name that is none is a UserError."""
    for part in parts:
        for parameter in _parameters(model, part, "train.freeze").values():
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
        of |= {
            id(parameter): factors[part]
            for parameter in _parameters(model, part, "train.lr_factors").values()
        }
    for optimizer in optimizers if of else ():
        groups = optimizer.param_groups[:]
        optimizer.param_groups.clear()
        for group in groups:
            for factor in sorted({of.get(id(p), 1.0) for p in group["params"]}):
                chosen = [p for p in group["params"] if of.get(id(p), 1.0) == factor]
                optimizer.param_groups.append({**group, "params": chosen, "lr": group["lr"] * factor})


def _parameters(model: nn.Module, part: str, key: str) -> dict[str, nn.Parameter]:
    """Those under a name, such as ``encoder.embedding`` or ``encoder.stack.layers.0``."""
    every = dict(model.named_parameters())
    found = {name: p for name, p in every.items() if name == part or name.startswith(f"{part}.")}
    if not found:
        prefixes = {
            name.rsplit(".", n)[0] for name in every for n in range(name.count(".") + 1)
        } | every.keys()
        raise UserError(f"{key}: no part of the model is called {part!r}{nearest(part, sorted(prefixes))}")
    return found


def _complete(recipe: Recipe) -> bool:
    """Whether the recipe says all of the model, as the one that a run has written."""
    return recipe.model.model_fields_set >= set(ModelSection.model_fields)
