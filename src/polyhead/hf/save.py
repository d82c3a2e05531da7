"""Convert a Polyhead model to a checkpoint of a Hugging Face family, in one file or in shards."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.chat.apply_template import encode_end_tokens
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.model import EncoderOverride, LayerOverride, ModelConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError, format_value, unknown_name_error
from polyhead.core.registry import CHAT, POOLING, POSITION
from polyhead.generation.settings import eos_ids_for
from polyhead.hf.checkpoint_files import WEIGHTS_FILE
from polyhead.hf.config_map import ConfigReader, layer_choice
from polyhead.hf.family import FAMILY, ModelFamily, to_hf
from polyhead.hf.generation_config import generation_dict
from polyhead.hf.load import to_model_config
from polyhead.hf.sentence_transformers import (
    dense_rules,
    embedding_settings,
    module_files,
    write_score_activation,
)
from polyhead.models.build import Model, model_class
from polyhead.nn.pooling import has_transform_bias
from polyhead.nn.state import named_state
from polyhead.tokenizers.tokenizer import Tokenizer

SIZE_UNITS = {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_size(text: str) -> int:
    """Parse a size such as 2GB or 500MiB into bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", text.strip(), re.IGNORECASE)
    units = {unit.upper(): factor for unit, factor in SIZE_UNITS.items()}
    size = int(float(match[1]) * units[match[2].upper()]) if match else 0
    if size < 1:
        raise UserError(
            f"the size {text!r} is not a number above 0 with a unit, one of "
            f"{', '.join(SIZE_UNITS)}: write 2GB"
        )
    return size


def split_shards(tensors: Mapping[str, Tensor], max_bytes: int) -> dict[str, dict[str, Tensor]]:
    """Return file -> its tensors, in their order.

    A file holds at most ``max_bytes`` bytes of tensors, unless a single tensor is larger.
    """
    parts: list[dict[str, Tensor]] = [{}]
    room = max_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > room and parts[-1]:
            parts.append({})
            room = max_bytes
        parts[-1][name] = tensor
        room -= tensor.nbytes
    if len(parts) == 1:
        return {WEIGHTS_FILE: parts[0]}
    return {f"model-{i:05}-of-{len(parts):05}.safetensors": part for i, part in enumerate(parts, 1)}


def build_index(files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """Return the index: the file of each tensor and the total size in bytes."""
    entries = {name: (file, tensor) for file, part in files.items() for name, tensor in part.items()}
    return {
        "metadata": {"total_size": sum(tensor.nbytes for _, tensor in entries.values())},
        "weight_map": {name: file for name, (file, _) in sorted(entries.items())},
    }


log = logging.getLogger(__name__)

# fields that affect training only, are compared layer by layer, or are stored in separate files
_UNCOMPARED_FIELDS = {"init", "dropout", "layer_pattern", "dense"}
# parts of a decoder with cross-attention -> the part that is used if it is None
_CROSS_DEFAULTS = {
    "n_decoder_layers": "n_layers",
    "decoder_block": "block",
    "decoder_attention": "attention",
    "cross_attention": "attention",
}
_LAYER_FIELDS = LayerOverride.model_fields  # fields that a layer pattern may override
# fields that a model of that class does not use
_HEAD_FIELDS = {
    "head_transform_activation",
    "lm_head_bias",
    "logits_scale",
    "logit_softcap",
    "tie_embeddings",
}
_UNUSED_FIELDS = {
    "Classifier": _HEAD_FIELDS | {"lm_head"},
    **dict.fromkeys(
        ("TokenClassifier", "QuestionAnswerer"), _HEAD_FIELDS | {"lm_head", "pooling", "head_transform_bias"}
    ),
    "SentenceEncoder": _HEAD_FIELDS,
    "MaskedLM": {"pooling"},
}
# written as null if absent; left out if absent
_REQUIRED_ROLES = ("bos_token", "eos_token", "pad_token")
_OPTIONAL_ROLES = ("cls_token", "sep_token", "forced_bos_token")
# of equivalent families, those that most tools read
_PREFERRED_FAMILIES = ("gpt_neox", "llama", "mixtral", "roberta", "t5")
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class SavedCheckpoint(NamedTuple):
    """The content of a checkpoint directory."""

    family: str
    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, Tensor]
    extra_files: dict[str, Any]  # other JSON files, by name
    extra_tensors: dict[str, dict[str, Tensor]]  # tensors of other files, by file name


def build_checkpoint(
    model: Model,
    tokenizer: Tokenizer,
    generation: GenerationConfig,
    family: str | None = None,
    dtype: str = "fp32",
    origin: str | None = None,
) -> SavedCheckpoint:
    """Convert a model to a checkpoint of ``family``, else of the first family that can express it, trying
    ``origin`` first.

    A UserError lists the unsupported parts.
    """
    if dtype not in _DTYPES:
        raise unknown_name_error("dtype", dtype, _DTYPES)
    family = pick_family(model.config, family, origin)
    chosen: ModelFamily = FAMILY.get(family)
    hf_config, ids = config_dict(model.config, family), special_token_ids(model.config, tokenizer)
    stops = (
        {"eos_token_id": all_eos_ids(generation, tokenizer)}
        if generation.chat or generation.stop_tokens
        else {}
    )
    if mismatches := mismatched_ids(hf_config, ids):
        raise UserError(f"this model does not belong to the family {family!r}: {'; '.join(mismatches)}")
    table = (*chosen.rules_for(type(model).__name__), *dense_rules(model.config))
    tensors = {**to_hf(table, named_state(model), model.config), **chosen.generate_tensors(model.config)}
    saved_tensors = {
        name: tensor.detach().to(_DTYPES[dtype]).contiguous() for name, tensor in tensors.items()
    }
    extra_tensors: dict[str, dict[str, Tensor]] = {}
    for name in [name for name in saved_tensors if "/" in name]:
        folder, _, tensor_name = name.rpartition("/")
        extra_tensors.setdefault(f"{folder}/{WEIGHTS_FILE}", {})[tensor_name] = saved_tensors.pop(name)
    bare = (
        chosen.prefix
        if model.config.kind == "encoder" and not (model.config.lm_head or model.config.labels)
        else ""
    )
    # most language models do not give embeddings: the files are written only for non-default settings
    has_embedding_settings = model.config.kind == "decoder" and embedding_settings(
        generation
    ) != embedding_settings(GenerationConfig())
    return SavedCheckpoint(
        family,
        hf_config
        | write_score_activation(model.config, generation)
        | {"dtype": str(_DTYPES[dtype]).removeprefix("torch.")}
        | ids,
        generation_dict(model.config, generation, tokenizer) | ids | stops,
        {name.removeprefix(bare): tensor for name, tensor in saved_tensors.items()},
        module_files(generation, model.config) if bare or has_embedding_settings else {},
        extra_tensors,
    )


def all_eos_ids(generation: GenerationConfig, tokenizer: Tokenizer) -> list[int]:
    """Return all ids that end a text or an answer; the end of text comes first."""
    answers = encode_end_tokens(CHAT.build(generation.chat), tokenizer) if generation.chat else ()
    target = tokenizer.target_tokenizer
    return list(eos_ids_for(generation, target, target.eos_id, *answers))


def special_token_ids(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the ids of special tokens for config.json."""
    role_ids = tokenizer.target_tokenizer.role_ids
    ids = {f"{role}_id": role_ids.get(role) for role in _REQUIRED_ROLES}
    ids |= {f"{role}_id": role_ids[role] for role in _OPTIONAL_ROLES if role in role_ids}
    if config.kind == "encoder-decoder":
        ids["decoder_start_token_id"] = tokenizer.seq2seq_template.decoder_start_id
    return ids


def mismatched_ids(hf_config: Mapping[str, Any], ids: Mapping[str, int | None]) -> list[str]:
    """Return one line for each special token id that the family fixes at another value."""
    return [
        f"its {key} is {format_value(ids[key])}, expected {format_value(hf_config[key])}"
        for key in hf_config.keys() & ids.keys()
        if hf_config[key] != ids[key]
    ]


def pick_family(config: ModelConfig, family: str | None = None, origin: str | None = None) -> str:
    """Return a family that expresses this config exactly: ``family`` if given, else ``origin``, else any."""
    name, obstacles = nearest_family(config, family, origin)
    if not obstacles:
        return name
    what = (
        f"this model does not belong to the family {family!r}"
        if family
        else f"no published family has these components; the nearest is {name!r}"
    )
    raise UserError(f"{what}: {'; '.join(obstacles)}")


def nearest_family(
    config: ModelConfig, family: str | None = None, origin: str | None = None
) -> tuple[str, list[str]]:
    """Return the family that supports most of a config, and one line for each unsupported part.

    Of several that support it fully, it is the first.
    """
    if family is not None and family not in FAMILY.names():
        raise unknown_name_error("family", family, FAMILY.names())
    obstacles_by_family, without_model = {}, set()
    names = sorted(FAMILY.names(), key=lambda name: (name != origin, name not in _PREFERRED_FAMILIES))
    for name in [family] if family else names:
        try:
            obstacles_by_family[name] = hf_unsupported(config, name)
            if not obstacles_by_family[name]:
                return name, []
        # the family has no such model, so the number of obstacles does not measure how near it is
        except UserError as error:
            obstacles_by_family[name] = [str(error)]
            without_model.add(name)
    kind = model_class(as_causal_lm(config)).__name__
    nearest = min(
        obstacles_by_family,
        key=lambda name: (
            kind not in FAMILY.get(name).architectures,
            name in without_model,
            len(obstacles_by_family[name]),
        ),
    )
    return nearest, obstacles_by_family[nearest]


def as_causal_lm(config: ModelConfig) -> ModelConfig:
    """Return the config of the full language model for one without its head."""
    return (
        config.model_copy(update={"kind": "decoder", "lm_head": True, "causal": False})
        if config.causal
        else config
    )


def config_dict(config: ModelConfig, family: str) -> dict[str, Any]:
    """Return config.json of a family. A UserError if the family has no such model."""
    if config.causal:
        lm_config, architectures = config_dict(as_causal_lm(config), family), FAMILY.get(family).architectures
        usual = re.sub("ForCausalLM|LMHeadModel", "Model", lm_config["architectures"][0])
        return lm_config | {"architectures": [architectures.get("SentenceEncoder", usual)]}
    chosen, kind = FAMILY.get(family), model_class(config).__name__
    if kind not in chosen.architectures:
        raise UserError(f"its model is {kind}, expected {' or '.join(chosen.architectures)}")
    return {"model_type": family, "architectures": [chosen.architectures[kind]], **chosen.write(config)}


def hf_unsupported(config: ModelConfig, family: str) -> list[str]:
    """List the parts that the family cannot express.

    The config is written, read again, and compared; each part or size that differs is one line. A UserError
    if the family has no such model.
    """
    chosen, config = FAMILY.get(family), as_causal_lm(config)
    restored = to_model_config(
        chosen, ConfigReader(config_dict(config, family), family, _head_tensors(config, chosen))
    )
    obstacles: list[str] = []
    is_seq2seq = config.kind == "encoder-decoder"
    skipped = (
        _UNCOMPARED_FIELDS
        | _UNUSED_FIELDS.get(model_class(config).__name__, set())
        | (set() if is_seq2seq else _CROSS_DEFAULTS.keys())
    )
    for field in type(config).model_fields:
        value, restored_value = getattr(config, field), getattr(restored, field)
        if field == "tie_embeddings" and not is_seq2seq:
            value, restored_value = value in ("inputs", "none"), restored_value in ("inputs", "none")
        if field in _CROSS_DEFAULTS:
            value, restored_value = (
                choice or getattr(model_config, _CROSS_DEFAULTS[field])
                for choice, model_config in ((value, config), (restored_value, restored))
            )
        if field == "head_transform_bias" and value != restored_value:
            value, restored_value = _has_head_transform_bias(config), _has_head_transform_bias(restored)
            restored_value = None if value is None else restored_value
        if field == "pooling" and config.labels:
            value = value or POOLING.check(Choice("first"))  # as in the classifier
        if field in _LAYER_FIELDS:
            obstacles += _compare_layers(field, config, restored)
        elif field in skipped or value == restored_value:
            continue
        elif isinstance(value, EncoderOverride) and isinstance(restored_value, EncoderOverride):
            obstacles += [
                f"{name} of encoder is {_format_value(own)}, expected {_format_value(restored_own)}"
                for (name, own), (_, restored_own) in zip(value, restored_value, strict=True)
                if own != restored_own
            ]
        elif field == "encoder":
            whose = ["of the decoder", "of its own"]
            whose = whose if value is None else whose[::-1]
            obstacles.append(f"encoder has sizes and parts {whose[0]}, expected {whose[1]}")
        elif isinstance(value, Choice) and isinstance(restored_value, Choice):
            obstacles += _compare_choices(field, value, restored_value)
        else:
            obstacles.append(
                f"{field} is {_format_value(getattr(config, field))}, expected "
                f"{_format_value(getattr(restored, field))}"
            )
    return obstacles


def _has_head_transform_bias(config: ModelConfig) -> bool | None:
    """Return whether the projections after the layers have biases, or None if there are none."""
    has_projections = (config.lm_head and config.has_head_transform) or config.labels or config.pooling
    return has_transform_bias(config) if config.kind != "decoder" and has_projections else None


def _format_value(value: object) -> str:
    """Format a part as its name, anything else as the value."""
    return format_value(value.name if isinstance(value, Choice) else value)


def _head_tensors(config: ModelConfig, family: ModelFamily) -> set[str]:
    """Return the head and embedding tensors in the files, which configs do not state."""
    ties = config.tie_embeddings
    is_present = {
        "head.bias": config.lm_head_bias,
        "head.weight": ties in ("inputs", "none"),
        "decoder_embedding.token.weight": ties in ("target", "none"),
        "follows.weight": config.nsp_head,
    }
    return {
        row.hf_name
        for row in family.rules_for(model_class(config).__name__)
        if is_present.get(row.param_names[0])
    }


def _compare_layers(field: str, config: ModelConfig, restored: ModelConfig) -> list[str]:
    """Compare a field in each layer, whatever the form of the layer pattern.

    Positions added to the embeddings are compared in addition to those of the layers.
    """
    layers = range(config.n_layers)
    pairs = [[layer_choice(model, field, i) for model in (config, restored)] for i in layers]
    if field == "position" and any(
        POSITION.get(m.position.name).kind == "embeddings" for m in (config, restored)
    ):
        pairs = [[config.position, restored.position], *pairs]
    return list(
        dict.fromkeys(
            line
            for choice, restored_choice in pairs
            for line in _compare_choices(field, choice, restored_choice)
        )
    )


def _compare_choices(field: str, choice: Choice, restored: Choice) -> list[str]:
    if choice.name != restored.name:
        return [f"{field} is {choice.name!r}, expected {restored.name!r}"]
    return [
        f"{key} of {field} {choice.name!r} is {format_value(value)}, expected "
        f"{format_value(restored.options.get(key))}"
        for key, value in choice.options.items()
        if key != "dropout" and value != restored.options.get(key)
    ]
