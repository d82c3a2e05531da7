"""Beginning with trained weights: fine-tuning, and students made of their teacher's layers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from polyhead.analysis.sizes import hollow
from polyhead.config import ModelConfig, ModelSection
from polyhead.core.i18n import tr
from polyhead.errors import UserError, at, explain
from polyhead.generation_section import USED, GenerationConfig
from polyhead.loading import load
from polyhead.nn.weights import weights
from polyhead.recipe import Recipe
from polyhead.registry import TASK, Choice
from polyhead.run import Run
from polyhead.sections import AdaptSection
from polyhead.train.learned import must_learn, prepare, scale_rates, widest
from polyhead.train.tasks.base import OfClasses

Weights = Mapping[str, Tensor]

LAYER = re.compile(r"^(.*\.layers\.)(\d+)(\..*)")
LAYERS = ("n_layers", "n_decoder_layers")
FREE = (
    "dropout", "init", "pooling", "head", "generator", "head_activation",
)  # no weight in common depends on it  # fmt: skip
SHOWN = 3  # weights that are named where many do not fit
# what may not be new in a model that was begun with
INSIDE = re.compile(r"(?!generator\.).*(embedding\.(token|token_proj|position|proj)|\.layers\.\d+)\..*")


def open_start(recipe: Recipe, begun: bool = False) -> Run | None:
    """The run that a recipe begins with. A run that has ``begun`` does not need it, if the recipe says all of the model."""
    if recipe.start is None or (begun and _complete(recipe)):
        return None
    with at("start.run"):
        return load(recipe.start.run, device="cpu")


def resolved(recipe: Recipe, origin: Run | None) -> Recipe:
    """The recipe with the model of ``origin`` and how that is used, where it says nothing else itself."""
    if origin is None or recipe.start is None or _complete(recipe):
        return _settled(recipe, origin)
    own, every = origin.config, recipe.start.every
    if own.kind != recipe.model.kind:
        raise UserError(
            f"start.run: {recipe.start.run} is of kind {own.kind!r}, and task {recipe.task.name!r} trains {recipe.model.kind!r}"
        )
    if own.causal:
        raise UserError(
            f"start.run: {recipe.start.run} is a language model without its head, and no task trains one"
        )
    if "tokenizer" in recipe.model_fields_set:
        raise UserError(
            "tokenizer: it comes with start.run, so that the model knows its tokens; leave it out"
        )
    # what stood on an encoder is not what will
    on = {"head": not recipe.model.generator, "generator": 0}
    fields = own.model_dump(include=set(ModelSection.model_fields)) | on
    fields |= _thinned(own, every)
    fields |= {name: getattr(recipe.model, name) for name in recipe.model.model_fields_set}
    try:
        model = ModelSection.model_validate(fields)
    except ValidationError as error:
        raise explain(error, ModelSection, "model, with that of start.run") from None
    generation = _used(recipe, origin.generation)
    return _settled(recipe.model_copy(update={"model": model, "generation": generation}), origin)


def _used(recipe: Recipe, there: GenerationConfig) -> GenerationConfig:
    """How outputs are made: as the recipe says, else as ``there``. What has classes reads as much of a text as it learns from."""
    said, of_classes = recipe.generation, isinstance(TASK.get(recipe.task.name), OfClasses)
    names = USED[recipe.model.kind][1] - ({"max_text_len"} if of_classes else set())
    own = there.model_dump(exclude_defaults=True).keys()
    taken = {name: getattr(there, name) for name in names & own - said.model_fields_set}
    try:
        return GenerationConfig.model_validate(
            taken | {name: getattr(said, name) for name in said.model_fields_set}
        )
    except UserError as error:
        raise UserError(f"generation, with that of start.run: {error}") from None
    except ValidationError as error:
        raise explain(error, GenerationConfig, "generation, with that of start.run") from None


def check_parts(recipe: Recipe, origin: Run | None) -> None:
    """What the recipe says of parts of its model fits them, which is known before any text is read.

    How many tokens and classes there will be is not, and does not matter.
    """
    train = recipe.train
    if not (origin or train.freeze or train.lr_factors):
        return
    tokens, labels = recipe.tokenizer.vocab_size, tuple("01")
    if origin:
        tokens, labels = origin.config.vocab_size, origin.config.labels or labels
    of_classes = isinstance(TASK.get(recipe.task.name), OfClasses)
    model = hollow(recipe.model.with_vocabulary(tokens, labels if of_classes else ()))
    if origin and recipe.start:
        begin(model, origin, recipe.start.every, train.adapt)
    prepare(model, train)
    scale_rates(model, (), train.lr_factors)


@torch.no_grad()
def begin(model: Any, origin: Run, every: int = 1, adapted: AdaptSection | None = None) -> str:
    """Copy the weights of ``origin`` into a model, layer i from layer ``every`` * i; returns a line that says what is new.

    Embeddings and layers must all be there and fit; a head, a pooler or a generator may be new, and a head for other
    classes is. What is new must learn, so a model that is ``adapted`` must name it.
    """
    there, wanted = weights(origin.model), weights(model)
    given = with_classes(there, origin.config.labels, model.config.labels)
    source = {name: LAYER.sub(lambda m: f"{m[1]}{int(m[2]) * every}{m[3]}", name) for name in wanted}
    wrong = [f"{source[name]} {list(given[source[name]].shape)}, wanted {list(tensor.shape)}"
             for name, tensor in wanted.items() if source[name] in given and given[source[name]].shape != tensor.shape]  # fmt: skip
    missing = [source[name] for name in wanted if source[name] not in given]
    if lost := [name for name in missing if INSIDE.match(name)]:
        wrong += [f"{name} is not there" for name in lost]
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise UserError(
            f"start.run: its weights do not fit the model{_differing(model, origin, every)}: {'; '.join(wrong[:SHOWN])}{more}"
        )
    for name, tensor in wanted.items():
        if source[name] in given:
            tensor.copy_(given[source[name]])
    new = sorted(name for name in wanted if source[name] not in given)
    if adapted:
        must_learn(model, adapted, new)
    left = sorted(there.keys() - (given.keys() & set(source.values()))) if every == 1 else []
    said = tr("begun with {count} of {all} weights", count=len(wanted) - len(new), all=len(wanted))
    said += tr("; new: {names}", names=", ".join(widest(new, wanted))) if new else ""
    return said + (tr("; not taken: {names}", names=", ".join(widest(left, there))) if left else "")


def with_classes(there: Weights, known: Sequence[str], wanted: Sequence[str]) -> Weights:
    """What tells classes in the order that is wanted, and without it where these are others."""
    own = {name: tensor for name, tensor in there.items() if name.startswith("classifier.")}
    rest = {name: tensor for name, tensor in there.items() if name not in own}
    if sorted(known) != sorted(wanted):
        return rest
    rows = [known.index(label) for label in wanted]
    return {**rest, **{name: tensor[rows] for name, tensor in own.items()}}


def _differing(model: Any, origin: Run, every: int) -> str:
    """The keys of the recipe that make the model another one than that of the run."""
    found, thinned = [], _thinned(origin.config, every)
    for name in ModelSection.model_fields:
        now, was = getattr(model.config, name), getattr(origin.config, name)
        left = thinned.get(name, was)
        if now != left and name not in FREE:
            now, was = (value.name if isinstance(value, Choice) else value for value in (now, was))
            fewer = f", of which start.every={every} takes {left}" if left != was and name in LAYERS else ""
            found.append(f"model.{name}={now} (the run has {was}{fewer})")
    return f", which has {', '.join(found)}" if found else ""


def _thinned(config: ModelConfig, every: int) -> dict[str, Any]:
    """What differs where layer i is made of layer ``every`` * i: how many there are, and the turns of their kinds."""
    turns = len(config.pattern) // math.gcd(len(config.pattern), every)
    pattern = tuple(config.pattern[i * every % len(config.pattern)] for i in range(turns))
    return {name: -(-getattr(config, name) // every) for name in LAYERS} | {"pattern": pattern}


def _settled(recipe: Recipe, origin: Run | None) -> Recipe:
    """What follows from the task for what is made later: a language model without a chat format has that of ``origin``, else
    of its task, and what has classes reads as much of a text as it learns from, if nothing is said.
    """
    task, said, settled = TASK.get(recipe.task.name), recipe.generation, {}
    if recipe.model.kind == "decoder":
        there = origin.generation.chat if origin else None
        settled["chat"] = said.chat or there or getattr(task, "chat", None)
    if isinstance(task, OfClasses) and "max_text_len" not in said.model_fields_set:
        few = recipe.data.max_len < recipe.model.max_len
        settled["max_text_len"] = recipe.data.max_len if few else None
    return recipe.model_copy(update={"generation": said.model_copy(update=settled)})


def _complete(recipe: Recipe) -> bool:
    """Whether the recipe says all of the model, as the one that a run has written."""
    return recipe.model.model_fields_set >= set(ModelSection.model_fields)
