"""Load a checkpoint directory as a Polyhead model."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError, format_value, prefix_errors
from polyhead.core.messages import from_validation_error
from polyhead.hf.checkpoint_files import READABLE_DTYPES, CheckpointFiles
from polyhead.hf.config_map import ConfigReader
from polyhead.hf.family import HEAD_WEIGHT, ModelFamily, bind_rules, from_hf, to_hf
from polyhead.hf.generation_config import detect_chat_format, read_beam_config, read_sampling_config
from polyhead.hf.lora import StoredTensor, apply_adapter, with_adapter_classes
from polyhead.hf.published_checkpoint import PublishedCheckpoint, open_checkpoint
from polyhead.hf.sentence_transformers import (
    dense_rules,
    load_dense_modules,
    read_embedding_config,
    read_max_len,
    read_score_activation,
)
from polyhead.hf.tokenizer import extra_eos, load_tokenizer
from polyhead.models import SentenceEncoder
from polyhead.models.build import Model, model_class
from polyhead.nn.init import SkipInit
from polyhead.nn.state import assign_state, named_state
from polyhead.nn.validate_model import check_model
from polyhead.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_MAX_LISTED = 8  # maximum number of names of one kind in an error


class LoadedCheckpoint(NamedTuple):
    """The content of a checkpoint directory."""

    model: Model
    tokenizer: Tokenizer
    generation: GenerationConfig
    family: str


def load_checkpoint(files: CheckpointFiles) -> LoadedCheckpoint:
    """Load model, tokenizer and generation settings. All failures are a UserError of one line.

    A directory of an adapter is loaded as the checkpoint that it changes, with the adapter's own tokenizer if
    it has one. The model is that of ``load_weights``.
    """
    checkpoint = open_checkpoint(files)
    model = load_weights(checkpoint)
    tokenizer = load_tokenizer(checkpoint, model.config)
    return LoadedCheckpoint(
        model, tokenizer, _read_generation(checkpoint, model.config, tokenizer), checkpoint.model_type
    )


def _read_generation(
    checkpoint: PublishedCheckpoint, config: ModelConfig, tokenizer: Tokenizer
) -> GenerationConfig:
    """Convert the generation settings, those of the tokenizer and those of sentence-transformers."""
    files, path, generation = checkpoint.files, checkpoint.generation_path, checkpoint.generation
    ends = extra_eos(checkpoint, tokenizer)
    if config.kind == "encoder-decoder":
        return read_beam_config(generation, tokenizer.target_tokenizer, path).model_copy(
            update={"stop_tokens": ends}
        )
    embedding_values = read_embedding_config(files, has_dense=bool(config.dense))
    if embedding_values or config.kind == "encoder":
        embedding_values |= {"embed_max_len": read_max_len(files, tokenizer, config.max_len)}
    if len(config.labels) == 1:
        embedding_values |= read_score_activation(files, checkpoint.config)
    if config.kind == "encoder":
        return GenerationConfig(**embedding_values)
    overrides = {
        "stop_tokens": ends,
        "chat": detect_chat_format(checkpoint.tokenizer_files),
        **embedding_values,
    }
    return read_sampling_config(generation, path).model_copy(update=overrides)


def load_weights(checkpoint: PublishedCheckpoint) -> Model:
    """Build the model and give it the tensors of the checkpoint, after a check of all names and shapes.

    Weights are memory-mapped: they keep the dtype of the files, take no memory and must not be modified.
    Those that an adapter changes are in memory, and so are those whose rows the family stores in another
    order.
    """
    family, directory, adapter = checkpoint.family, checkpoint.files.directory, checkpoint.adapter
    path = directory / "config.json"
    replacements = adapter.replacements if adapter else {}
    hf_config, stored = with_adapter_classes(family, checkpoint.config, checkpoint.tensors, replacements)
    tensors: dict[str, StoredTensor] = {**stored}
    config = to_model_config(family, ConfigReader(hf_config, path, tensors.keys()))
    if adapter:
        config, tensors = apply_adapter(
            family, config, stored, replacements, adapter.deltas, adapter.directory
        )
    layers = 1 if config.share_layers else max(config.n_layers, config.decoder_layers)
    if layers > len(tensors):
        raise UserError(f"{path} has {layers} layers, but the files have {len(tensors)} tensors")
    untied_params = {HEAD_WEIGHT: config.tie_embeddings == "none", "head.bias": config.lm_head_bias}
    head_names = {row.hf_name for row in family.weight_map if untied_params.get(row.param_names[0])}
    lm_classes = {family.architectures.get("CausalLM")}
    has_bare_class = not lm_classes & {*(hf_config.get("architectures") or lm_classes)}
    is_bare_decoder = config.kind == "decoder" and config.d_embedding is None and has_bare_class
    if is_bare_decoder and bool(head_names) and not head_names & set(tensors):
        config = config.model_copy(update={"kind": "encoder", "lm_head": False, "causal": True})
    if model_class(config) is SentenceEncoder:
        maps, dense_tensors = load_dense_modules(checkpoint.files, config.d_model)
        config, tensors = config.model_copy(update={"dense": tuple(maps)}), {**tensors, **dense_tensors}
    table = (*family.rules_for(model_class(config).__name__), *dense_rules(config))
    with torch.device("meta"), SkipInit():  # without memory, until the sizes in config.json are checked
        model = model_class(config)(config)
    params = named_state(model)
    expected = to_hf(table, params, config)
    tensors = _add_tied_copies(family, expected, tensors)
    if ignored := [
        name
        for name in sorted(tensors)
        if name not in expected and re.fullmatch(family.ignored_pattern, name)
    ]:
        log.warning(
            "%s: ignored tensors that this model does not have: %s", directory, _format_names(ignored)
        )
    tensors = {
        name: value
        for name, value in tensors.items()
        if name in expected or not re.fullmatch(f"{family.buffer_pattern}|{family.ignored_pattern}", name)
    }
    tensors = _drop_tied_copies(family, expected, tensors, directory)
    label = f"{directory} with {adapter.directory}" if adapter else str(directory)
    _check_weights(tensors, expected, label, _read_as(family, config, hf_config))
    weights = {
        name: tensor.expand_as(params[name])
        for row in bind_rules(table, params, config)
        for name, tensor in from_hf(row, tensors[row.hf_name].load(), params)
    }
    return assign_state(model, weights).eval()


def to_model_config(family: ModelFamily, reader: ConfigReader) -> ModelConfig:
    """Convert config.json to a ModelConfig that can be built."""
    fields = family.read(reader)
    reader.reject_unknown()
    try:
        config = ModelConfig.model_validate(fields)
    except ValidationError as error:
        raise from_validation_error(error, ModelConfig, str(reader.location)) from None
    with prefix_errors(str(reader.location)):
        return check_model(config)


def _add_tied_copies(
    family: ModelFamily, expected: Mapping[str, Tensor], tensors: dict[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Add second names of tensors that some files hold once: both sides' embeddings, a bias; not the head."""
    heads = {row.hf_name for row in family.weight_map if row.param_names == (HEAD_WEIGHT,)}
    copies = {
        name: tensors[of]
        for name, of in family.tied_weights.items()
        if name in expected.keys() - tensors.keys() - heads and of in tensors
    }
    return tensors | copies


def _drop_tied_copies(
    family: ModelFamily, expected: Mapping[str, Tensor], tensors: dict[str, StoredTensor], directory: Path
) -> dict[str, StoredTensor]:
    """Drop second names of tied tensors, which some files hold twice. The copies must be equal."""
    copies = {
        name: of
        for name, of in family.tied_weights.items()
        if name in tensors and name not in expected and of in tensors
    }
    for name, of in copies.items():
        if not torch.equal(tensors[name].load(), tensors[of].load()):
            raise UserError(
                f"{directory}: {name} is not {of}, but according to config.json they are tied; is "
                "tie_word_embeddings false?"
            )
    return {name: value for name, value in tensors.items() if name not in copies}


def _read_as(family: ModelFamily, config: ModelConfig, hf_config: Mapping[str, Any]) -> str:
    """Describe the transformers class the model was read as, if config.json names another or none."""
    hf_class = family.architectures.get(model_class(config).__name__, "a model without a head")
    architectures = hf_config.get("architectures") or ["no architectures"]
    return (
        ""
        if hf_class in architectures
        else f". It was read as {hf_class}; config.json names {_format_names(map(str, architectures))}"
    )


def _check_weights(
    tensors: Mapping[str, StoredTensor], expected: Mapping[str, Tensor], label: str, read_as: str = ""
) -> None:
    """Reject tensors that differ from the expected ones, listing all missing, unused and mismatched names."""
    shared = sorted(tensors.keys() & expected.keys())
    shapes = [(name, tensors[name].shape, tuple(expected[name].shape)) for name in shared]
    wrong = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "unused": sorted(tensors.keys() - expected.keys()),
        "with another shape": [
            f"{name} {list(came)}, expected {list(want)}" for name, came, want in shapes if came != want
        ],
        f"none of {', '.join(READABLE_DTYPES)}": [
            f"{name} {tensors[name].dtype}" for name in shared if tensors[name].dtype not in READABLE_DTYPES
        ],
    }
    if any(wrong.values()):
        problems = "; ".join(f"{what}: {_format_names(names)}" for what, names in wrong.items() if names)
        raise UserError(f"{label}: the weights do not match config.json; {problems}{read_as}")


def _format_names(names: Iterable[str]) -> str:
    names = [format_value(name)[1:-1] if len(name) > 200 else name for name in names]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
