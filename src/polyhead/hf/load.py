"""Load a checkpoint directory as a Polyhead model."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor

from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError, format_value, prefix_errors, unknown_name_error
from polyhead.core.messages import from_validation_error
from polyhead.hf.apply_adapter import StoredTensor, apply_adapter, with_adapter_classes
from polyhead.hf.chat_template import detect_chat_format
from polyhead.hf.checkpoint_files import READABLE_DTYPES, find_file, open_tensors, read_checkpoint_json
from polyhead.hf.config_reader import ConfigReader
from polyhead.hf.family import FAMILY, HEAD_WEIGHT, ModelFamily
from polyhead.hf.generation_config import read_beam_config, read_sampling_config
from polyhead.hf.lora import LoraCheckpoint, is_adapter, load_adapter
from polyhead.hf.sentence_transformers import (
    dense_rules,
    load_dense_modules,
    read_embedding_config,
    read_max_len,
    read_score_activation,
)
from polyhead.hf.tokenizer import extra_eos, load_tokenizer
from polyhead.hf.weight_map import bind_rules, from_hf, to_hf
from polyhead.models import SentenceEncoder
from polyhead.models.build import Model, model_class
from polyhead.nn.skip_init import SkipInit
from polyhead.nn.state import materialize, named_state
from polyhead.tokenizers.files import FILE as TOKENIZER
from polyhead.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")

log = logging.getLogger(__name__)

_MAX_LISTED = 8  # maximum number of names of one kind in an error
# multimodal families whose text-only models are supported
_MULTIMODAL_FAMILIES = {
    "gemma3": "This Gemma 3 sees pictures; those of text alone ('gemma3_text'), such as google/gemma-3-1b-it, are read",
}


class LoadedCheckpoint(NamedTuple):
    """The content of a checkpoint directory."""

    model: Model
    tokenizer: Tokenizer
    generation: GenerationConfig
    family: str


def read_model_type(directory: Path) -> str | None:
    """Return model_type of config.json, or None if it is missing or unreadable."""
    try:
        kind = (read_checkpoint_json(directory, "config.json") or {}).get("model_type")
    except UserError:
        return None
    return kind if isinstance(kind, str) else None


def load_checkpoint(directory: Path) -> LoadedCheckpoint:
    """Load model, tokenizer and generation settings. All failures are a UserError of one line.

    A directory of an adapter is loaded as the checkpoint that it changes, with the adapter's own tokenizer if
    it has one. The model is that of ``load_mmap``.
    """
    adapter = load_adapter(directory) if is_adapter(directory) else None
    adapter_dir, directory = directory, adapter.base if adapter else directory
    tokenizer_dir = adapter_dir if find_file(adapter_dir, TOKENIZER) else directory
    config, generation = _read_hf_config(directory), read_checkpoint_json(directory, "generation_config.json")
    path = directory / ("config.json" if generation is None else "generation_config.json")
    model, family = load_mmap(directory, adapter), config["model_type"]
    tokenizer = load_tokenizer(tokenizer_dir, config, generation, model.config.vocab_size)
    ends = extra_eos(tokenizer, config, generation)
    generation = config if generation is None else generation  # older checkpoints have both in config.json
    if model.config.kind == "encoder-decoder":
        settings = read_beam_config(generation, tokenizer, path).model_copy(update={"ends": ends})
        return LoadedCheckpoint(model, tokenizer, settings, family)
    embedding_values = read_embedding_config(directory, has_dense=bool(model.config.dense))
    if embedding_values or model.config.kind == "encoder":
        embedding_values |= {"max_text_len": read_max_len(directory, tokenizer, model.config.max_len)}
    if len(model.config.labels) == 1:
        embedding_values |= read_score_activation(directory, config)
    if model.config.kind == "encoder":
        return LoadedCheckpoint(model, tokenizer, GenerationConfig(**embedding_values), family)
    overrides = {"ends": ends, "chat": detect_chat_format(tokenizer_dir), **embedding_values}
    return LoadedCheckpoint(
        model, tokenizer, read_sampling_config(generation, path).model_copy(update=overrides), family
    )


def load_model(directory: Path, adapter: LoraCheckpoint | None = None) -> Model:
    """Load the model alone in fp32, whatever the dtype of the files."""
    return materialize(load_mmap(directory, adapter))


def load_mmap(directory: Path, adapter: LoraCheckpoint | None = None) -> Model:
    """Load the model alone with memory-mapped weights: they keep the dtype of the files, take no memory and
    must not be modified.

    Weights that an adapter changes are in memory, and so are those whose rows the family stores in another
    order.
    """
    hf_config = _read_hf_config(directory)
    path = directory / "config.json"
    kind = hf_config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILY.names():
        if isinstance(kind, str) and kind in _MULTIMODAL_FAMILIES:
            raise UserError(
                f"{path}: model_type is {kind!r}, which is not built. {_MULTIMODAL_FAMILIES[kind]}"
            )
        with prefix_errors(str(path)):
            raise unknown_name_error("model_type", kind, FAMILY.names())
    family: ModelFamily = FAMILY.get(kind)
    stored = _normalize_names(family, open_tensors(directory))
    replacements = _normalize_names(family, adapter.replacements) if adapter else {}
    hf_config, stored = with_adapter_classes(family, hf_config, stored, replacements)
    tensors: dict[str, StoredTensor] = {**stored}
    config = to_model_config(family, ConfigReader(hf_config, path, tensors.keys()))
    if adapter:
        deltas = _normalize_names(family, adapter.deltas)
        config, tensors = apply_adapter(family, config, stored, replacements, deltas, adapter.directory)
    layers = 1 if config.share_layers else max(config.n_layers, config.decoder_layers)
    if layers > len(tensors):
        raise UserError(f"{path} speaks of {layers} layers, and the files hold {len(tensors)} tensors")
    if _is_headless(family, config, hf_config, tensors):
        config = config.model_copy(update={"kind": "encoder", "head": False, "causal": True})
    if model_class(config) is SentenceEncoder:
        maps, dense_tensors = load_dense_modules(directory, config.d_model)
        config, tensors = config.model_copy(update={"dense": tuple(maps)}), {**tensors, **dense_tensors}
    table = (*family.rules_for(model_class(config).__name__), *dense_rules(config))
    with torch.device("meta"), SkipInit():
        params = named_state(model_class(config)(config))
    expected = to_hf(table, params, config)
    tensors = _add_tied_copies(family, expected, tensors)
    if ignored := [
        name
        for name in sorted(tensors)
        if name not in expected and re.fullmatch(family.ignored_pattern, name)
    ]:
        log.warning(
            "%s: left behind, since this model has no place for them: %s", directory, _format_names(ignored)
        )
    tensors = {
        name: value
        for name, value in tensors.items()
        if name in expected or not re.fullmatch(f"{family.buffer_pattern}|{family.ignored_pattern}", name)
    }
    tensors = _drop_tied_copies(family, expected, tensors, directory)
    _check_weights(tensors, expected, directory, _read_as(family, config, hf_config))
    with torch.device("cpu"), SkipInit():  # device of the files, whatever the default device
        model = model_class(config)(config)
    params = named_state(model)
    for row in bind_rules(table, params, config):
        for name, tensor in from_hf(row, tensors[row.hf_name].load(), params):
            params[name].data = tensor.expand_as(params[name])
    return model.eval()


def _is_headless(
    family: ModelFamily, config: ModelConfig, hf_config: Mapping[str, Any], tensor_names: Collection[str]
) -> bool:
    """Return whether the checkpoint is a language model without a head, by tensors and architectures."""
    untied_params = {HEAD_WEIGHT: config.tie_embeddings == "none", "head.bias": config.head_bias}
    head_names = {row.hf_name for row in family.weight_map if untied_params.get(row.param_names[0])}
    lm_classes = {family.architectures.get("CausalLM")}
    has_bare_class = not lm_classes & {*(hf_config.get("architectures") or lm_classes)}
    is_bare_decoder = config.kind == "decoder" and config.d_embedding is None and has_bare_class
    return is_bare_decoder and bool(head_names) and not head_names & set(tensor_names)


def to_model_config(family: ModelFamily, reader: ConfigReader) -> ModelConfig:
    """Convert config.json to a ModelConfig."""
    fields = family.read(reader)
    reader.reject_unknown()
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        raise from_validation_error(error, ModelConfig, str(reader.location)) from None
    except UserError as error:
        raise UserError(f"{reader.location}: {error}") from None


def _read_hf_config(directory: Path) -> dict[str, Any]:
    config = read_checkpoint_json(directory, "config.json")
    if config is None:
        raise UserError(f"{directory} has no config.json")
    return config


def _normalize_names(family: ModelFamily, tensors: Mapping[str, T]) -> dict[str, T]:
    """Rename tensors to the current names of the full model."""
    table = [row for model in family.architectures for row in family.rules_for(model)]
    outside = {row.hf_name for row in table if not row.hf_name.startswith(family.prefix)}
    tensors = {name.removeprefix(family.legacy_prefix): entry for name, entry in tensors.items()}
    bare = not any(name.startswith(family.prefix) for name in tensors)
    renamed = {}
    for stored, entry in tensors.items():
        new_name = next(
            (
                stored.removesuffix(suffix) + new_suffix
                for suffix, new_suffix in family.legacy_suffixes.items()
                if stored.endswith(suffix)
            ),
            stored,
        )
        name = stored if new_name in tensors else new_name
        renamed[family.prefix + name if bare and name not in outside else name] = entry
    return renamed


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
                f"{directory}: {name} is not {of}, and config.json says that they are one; is tie_word_embeddings false?"
            )
    return {name: value for name, value in tensors.items() if name not in copies}


def _read_as(family: ModelFamily, config: ModelConfig, hf_config: Mapping[str, Any]) -> str:
    """Describe the transformers class the model was read as, if config.json names another or none."""
    hf_class = family.architectures.get(model_class(config).__name__, "a model without its head")
    architectures = hf_config.get("architectures") or ["no architectures"]
    return (
        ""
        if hf_class in architectures
        else f". It was read as {hf_class}; config.json names {_format_names(map(str, architectures))}"
    )


def _check_weights(
    tensors: Mapping[str, StoredTensor], expected: Mapping[str, Tensor], directory: Path, read_as: str = ""
) -> None:
    """Reject tensors that differ from the expected ones, listing all missing, unused and mismatched names."""
    shared = sorted(tensors.keys() & expected.keys())
    shapes = [(name, tensors[name].shape, tuple(expected[name].shape)) for name in shared]
    wrong = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "unused": sorted(tensors.keys() - expected.keys()),
        "of another shape": [
            f"{name} {list(came)}, wanted {list(want)}" for name, came, want in shapes if came != want
        ],
        f"neither of {', '.join(READABLE_DTYPES)}": [
            f"{name} {tensors[name].dtype}" for name in shared if tensors[name].dtype not in READABLE_DTYPES
        ],
    }
    if any(wrong.values()):
        problems = "; ".join(f"{what}: {_format_names(names)}" for what, names in wrong.items() if names)
        raise UserError(f"{directory}: the weights do not fit config.json; {problems}{read_as}")


def _format_names(names: Iterable[str]) -> str:
    names = [format_value(name)[1:-1] if len(name) > 200 else name for name in names]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
