"""Initialise a model from another run: fine-tuning, and students with some of the teacher's layers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from polyhead.config.config_sections import LoraConfig
from polyhead.config.generation_config import USED_KEYS, GenerationConfig
from polyhead.config.model import ModelConfig, ModelSpec, get_problem_type
from polyhead.config.recipe import HEADLESS_TASKS, Recipe
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, prefix_errors
from polyhead.core.i18n import tr
from polyhead.core.messages import from_validation_error
from polyhead.core.registry import TASK
from polyhead.cost.parameter_count import meta_model
from polyhead.nn.state import named_state
from polyhead.nn.validate_model import check_model
from polyhead.run.load import load
from polyhead.run.run import Run
from polyhead.train.tasks.base import HasClasses
from polyhead.train.trainable_parameters import (
    check_new_weights,
    group_by_module,
    prepare_trainable,
    scale_rates,
)

WeightMap = Mapping[str, Tensor]

LAYER_NAME = re.compile(r"^(.*\.layers\.)(\d+)(\..*)")
LAYER_COUNTS = ("n_layers", "n_decoder_layers")
FREE_FIELDS = (
    "dropout", "init", "pooling", "lm_head", "generator_layers", "head_transform_activation",
)  # shared weights do not depend on these fields  # fmt: skip
MAX_SHOWN_WEIGHTS = 3  # mismatched weights that are listed in an error
# weights with a row for each token
TOKEN_WEIGHTS = re.compile(
    r"(.*\.)?(embedding\.token|encoder_embedding\.token|decoder_embedding\.token|head)\.(weight|bias)"
)
# weights that the other run must have
REQUIRED_WEIGHTS = re.compile(
    r"(?!generator\.).*(embedding\.(token|token_proj|position|proj)|\.layers\.\d+)\..*"
)


def load_init_from(recipe: Recipe, has_checkpoint: bool = False) -> Run | None:
    """Load the run ``init_from.run`` of a recipe; None without ``init_from``.

    With ``has_checkpoint`` it is not needed if the recipe has the full model section.
    """
    if recipe.init_from is None or (has_checkpoint and _has_full_model(recipe)):
        return None
    with prefix_errors("init_from.run"):
        return load(recipe.init_from.run, device="cpu")


def inherit_settings(recipe: Recipe, origin: Run | None) -> Recipe:
    """The recipe, with model and generation settings that it does not set filled in from ``origin``."""
    if origin is None or recipe.init_from is None or _has_full_model(recipe):
        return _fill_generation_defaults(recipe, origin)
    origin_config, layer_stride = origin.config, recipe.init_from.layer_stride
    if origin_config.kind != recipe.model.kind:
        raise UserError(
            f"init_from.run: {recipe.init_from.run} is of kind {origin_config.kind!r}, but task "
            f"{recipe.task.name!r} trains {recipe.model.kind!r}"
        )
    if origin_config.causal:
        raise UserError(
            f"init_from.run: {recipe.init_from.run} is a language model without a head, which no task trains"
        )
    if recipe.tokenizer.model_fields_set - {"extend"}:
        raise UserError("tokenizer: init_from.run sets it, to match the model; only extend can be set")
    # the heads of an encoder are not inherited
    heads = {"lm_head": not recipe.model.generator_layers, "generator_layers": 0}
    fields = origin_config.model_dump(include=set(ModelSpec.model_fields)) | heads
    fields |= _select_layers(origin_config, layer_stride)
    fields |= {name: getattr(recipe.model, name) for name in recipe.model.model_fields_set}
    try:
        model = ModelSpec.model_validate(fields)
    except ValidationError as error:
        raise from_validation_error(error, ModelSpec, "model, with that of init_from.run") from None
    with prefix_errors("model, with that of init_from.run"):
        check_model(model)
    generation = _inherit_generation(recipe, origin.generation)
    return _fill_generation_defaults(
        recipe.model_copy(update={"model": model, "generation": generation}), origin
    )


def _inherit_generation(recipe: Recipe, origin_generation: GenerationConfig) -> GenerationConfig:
    """Generation settings of the recipe, else those of ``origin_generation``.

    Tasks of whole texts do not inherit ``embed_max_len``: they read as much of a text as in training.
    """
    generation = recipe.generation
    names = USED_KEYS[recipe.model.kind][1] - ({"embed_max_len"} if _reads_whole_texts(recipe) else set())
    origin_names = origin_generation.model_dump(exclude_defaults=True).keys()
    inherited_values = {
        name: getattr(origin_generation, name) for name in names & origin_names - generation.model_fields_set
    }
    try:
        return GenerationConfig.model_validate(
            inherited_values | {name: getattr(generation, name) for name in generation.model_fields_set}
        )
    except UserError as error:
        raise UserError(f"generation, with that of init_from.run: {error}") from None
    except ValidationError as error:
        raise from_validation_error(
            error, GenerationConfig, "generation, with that of init_from.run"
        ) from None


def check_parts(recipe: Recipe, origin: Run | None) -> None:
    """Check the names of model parts in the recipe before any text is read.

    The numbers of tokens and classes are not known yet, and do not matter.
    """
    train = recipe.train
    if not (origin or train.freeze or train.lr_factors):
        return
    vocab_size, labels = recipe.tokenizer.vocab_size, tuple("01")
    if origin:
        vocab_size, labels = origin.config.vocab_size, origin.config.labels or labels
    task = TASK.get(recipe.task.name)
    labels = labels if isinstance(task, HasClasses) else ()
    model = meta_model(recipe.model.with_vocabulary(vocab_size, labels, get_problem_type(task)))
    if origin and recipe.init_from:
        load_init_weights(model, origin, recipe.init_from.layer_stride, train.lora)
    prepare_trainable(model, train)
    scale_rates(model, (), train.lr_factors)


@torch.no_grad()
def load_init_weights(
    model: Any,
    origin: Run,
    layer_stride: int = 1,
    lora: LoraConfig | None = None,
    new_tokens: Mapping[int, Sequence[int]] | None = None,
) -> str:
    """Copy weights of ``origin`` into a model, layer i from layer ``layer_stride`` * i; returns a summary.

    The rows of ``new_tokens`` are the means of those of their old tokens (``tokenizer.extend``).

    Embeddings and layers must all exist and have matching shapes; a head, a pooler or a generator may be new,
    and a head for other classes is. New weights must be trainable, so ``lora`` must list them.
    """
    origin_weights, model_weights = named_state(origin.model), named_state(model)
    source_weights = reorder_class_weights(origin_weights, origin.config.labels, model.config.labels)
    source_weights = add_token_rows(source_weights, model.config.vocab_size, new_tokens or {})
    source_names = {
        name: LAYER_NAME.sub(lambda m: f"{m[1]}{int(m[2]) * layer_stride}{m[3]}", name)
        for name in model_weights
    }
    mismatches = [
        f"{source_names[name]} {list(source_weights[source_names[name]].shape)}, expected "
        f"{list(tensor.shape)}"
        for name, tensor in model_weights.items()
        if source_names[name] in source_weights and source_weights[source_names[name]].shape != tensor.shape
    ]
    missing = [source_names[name] for name in model_weights if source_names[name] not in source_weights]
    if missing_required := [name for name in missing if REQUIRED_WEIGHTS.match(name)]:
        mismatches += [f"{name} is missing" for name in missing_required]
    if mismatches:
        suffix = (
            f"; and {len(mismatches) - MAX_SHOWN_WEIGHTS} more" if len(mismatches) > MAX_SHOWN_WEIGHTS else ""
        )
        raise UserError(
            "init_from.run: its weights do not match the "
            f"model{_describe_differences(model, origin, layer_stride)}: "
            f"{'; '.join(mismatches[:MAX_SHOWN_WEIGHTS])}{suffix}"
        )
    for name, tensor in model_weights.items():
        if source_names[name] in source_weights:
            tensor.copy_(source_weights[source_names[name]])
    new = sorted(name for name in model_weights if source_names[name] not in source_weights)
    if lora:
        check_new_weights(model, lora, new)
    unused = (
        sorted(origin_weights.keys() - (source_weights.keys() & set(source_names.values())))
        if layer_stride == 1
        else []
    )
    summary = tr(
        "initialized {count} of {all} weights", count=len(model_weights) - len(new), all=len(model_weights)
    )
    summary += tr("; new: {names}", names=", ".join(group_by_module(new, model_weights))) if new else ""
    return summary + (
        tr("; unused: {names}", names=", ".join(group_by_module(unused, origin_weights))) if unused else ""
    )


def add_token_rows(
    source_weights: WeightMap, n_rows: int, new_tokens: Mapping[int, Sequence[int]]
) -> WeightMap:
    """The weights with ``n_rows`` rows of tokens: a new token has the mean of the rows of its old tokens."""
    weights = dict(source_weights)
    for name in filter(TOKEN_WEIGHTS.fullmatch, weights) if new_tokens else ():
        old = weights[name]
        weights[name] = new = old.new_zeros(n_rows, *old.shape[1:])
        new[: len(old)] = old
        for token, pieces in new_tokens.items():
            new[token] = old[list(pieces)].float().mean(0)
    return weights


def reorder_class_weights(
    source_weights: WeightMap, old_labels: Sequence[str], new_labels: Sequence[str]
) -> WeightMap:
    """The weights with classifier rows in the order of ``new_labels``; without them if the classes differ."""
    class_weights = {
        name: tensor for name, tensor in source_weights.items() if name.startswith("classifier.")
    }
    other_weights = {name: tensor for name, tensor in source_weights.items() if name not in class_weights}
    if sorted(old_labels) != sorted(new_labels):
        return other_weights
    rows = [old_labels.index(label) for label in new_labels]
    return {**other_weights, **{name: tensor[rows] for name, tensor in class_weights.items()}}


def _describe_differences(model: Any, origin: Run, layer_stride: int) -> str:
    """The model keys of the recipe that differ from those of ``origin``, as a phrase for an error."""
    differences, layer_fields = [], _select_layers(origin.config, layer_stride)
    for name in ModelSpec.model_fields:
        new_value, old_value = getattr(model.config, name), getattr(origin.config, name)
        expected_value = layer_fields.get(name, old_value)
        if new_value != expected_value and name not in FREE_FIELDS:
            new_value, old_value = (
                value.name if isinstance(value, Choice) else value for value in (new_value, old_value)
            )
            note = (
                f", of which init_from.layer_stride={layer_stride} uses {expected_value}"
                if expected_value != old_value and name in LAYER_COUNTS
                else ""
            )
            differences.append(f"model.{name}={new_value} (the run has {old_value}{note})")
    return f", which has {', '.join(differences)}" if differences else ""


def _select_layers(config: ModelConfig, layer_stride: int) -> dict[str, Any]:
    """Model fields that change if layer i is layer ``layer_stride`` * i: layer counts and layer pattern."""
    period = len(config.layer_pattern) // math.gcd(len(config.layer_pattern), layer_stride)
    pattern = tuple(config.layer_pattern[i * layer_stride % len(config.layer_pattern)] for i in range(period))
    return {name: -(-getattr(config, name) // layer_stride) for name in LAYER_COUNTS} | {
        "layer_pattern": pattern
    }


def _fill_generation_defaults(recipe: Recipe, origin: Run | None) -> Recipe:
    """Fill in generation settings that follow from the task, where the recipe does not set them.

    The chat format of a decoder is that of ``origin``, else of its task. A task of whole texts reads as much
    of one as in training. Vectors that are learned by their cosines have length 1.
    """
    task, generation, defaults = TASK.get(recipe.task.name), recipe.generation, {}
    if recipe.model.kind == "decoder":
        origin_chat = origin.generation.chat if origin else None
        defaults["chat"] = generation.chat or origin_chat or getattr(task, "chat", None)
    if _reads_whole_texts(recipe) and "embed_max_len" not in generation.model_fields_set:
        is_shorter = recipe.data.max_len < recipe.model.max_len
        defaults["embed_max_len"] = recipe.data.max_len if is_shorter else None
    if get_problem_type(task) == "regression":
        defaults["score_activation"] = "identity"
    if recipe.task.name in HEADLESS_TASKS and "normalize" not in generation.model_fields_set:
        defaults["normalize"] = True
    return recipe.model_copy(update={"generation": generation.model_copy(update=defaults)})


def _reads_whole_texts(recipe: Recipe) -> bool:
    """Whether the task gives each text a class or a vector."""
    return recipe.task.name in HEADLESS_TASKS or isinstance(TASK.get(recipe.task.name), HasClasses)


def _has_full_model(recipe: Recipe) -> bool:
    """Whether the recipe sets all fields of the model, as the recipe.yaml of a run does."""
    return recipe.model.model_fields_set >= set(ModelSpec.model_fields)
