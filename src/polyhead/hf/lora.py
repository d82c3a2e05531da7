"""LoRA adapters of PEFT: changes of a checkpoint that the adapter names (Hu et al., 2021)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import (
    INDEX_FILE,
    READABLE_DTYPES,
    WEIGHTS_FILE,
    CheckpointFiles,
    TensorEntry,
)
from polyhead.hf.config_map import ConfigReader
from polyhead.hf.family import CONCAT_TRANSPOSE, HEAD_WEIGHT, TRANSPOSE, ModelFamily
from polyhead.hf.hub import fetch_checkpoint, is_repo_id
from polyhead.nn.state import check_weight

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PEFT_PREFIX = "base_model.model."
_LORA_NAME = re.compile(r"(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
# a copy of a module that is also stored under its own name
_COPY_NAME = re.compile(r"(.+\.)(?:modules_to_save|original_module)\..+")
# keys that do not affect the delta, or that are read elsewhere
_IGNORED_KEYS = (
    "task_type", "inference_mode", "peft_version", "base_model_name_or_path", "revision", "auto_mapping",
    "megatron_core",
    "r", "rank_pattern", "bias", "fan_in_fan_out", "lora_dropout", "init_lora_weights", "modules_to_save",
    "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying", "qalora_group_size",
    "arrow_config",
    "corda_config", "eva_config", "lora_ga_config", "runtime_config", "ephemeral_gpu_offload",
)  # fmt: skip
_UNSUPPORTED_FLAGS = ("use_dora", "lora_bias", "use_qalora")  # other kinds of deltas
_UNSUPPORTED_KEYS = {
    "target_parameters": "null: LoRA of parameters outside linear layers, such as experts, is not supported",
    "layer_replication": "null: repeated layers are not supported",
}
_MEANINGFUL_FALSE = ("use_rslora", "init_lora_weights")  # keys whose false has a meaning
_NEUTRAL_INITS = (True, False, "gaussian", "eva", "orthogonal")  # these leave the checkpoint unchanged


class LoraDelta(NamedTuple):
    """The change of one weight: scale · B A, transposed if the weight is stored so."""

    a: Tensor  # (rank, in)
    b: Tensor  # (out, rank)
    scale: float
    is_transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        shape = self.b.size(0), self.a.size(1)
        return shape[::-1] if self.is_transposed else shape


class AdaptedTensor(NamedTuple):
    """A tensor of a checkpoint plus a LoRA delta."""

    entry: TensorEntry
    delta: LoraDelta

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    @property
    def dtype(self) -> str:
        return self.entry.dtype

    def load(self) -> Tensor:
        change = self.delta.scale * (self.delta.b.float() @ self.delta.a.float())
        weight = self.entry.load().float() + (change.T if self.delta.is_transposed else change)
        return check_weight(self.entry.name, weight, f"{self.entry.path} with its adapter")


class LoraCheckpoint(NamedTuple):
    """The changes of a checkpoint, by its weight names."""

    directory: Path
    base: CheckpointFiles  # of the base checkpoint
    replacements: Mapping[str, TensorEntry]  # weights that replace those of the base
    deltas: Mapping[str, LoraDelta]


def is_adapter(files: CheckpointFiles) -> bool:
    """Return whether a directory holds an adapter and no weights of its own."""
    return (files.directory / ADAPTER_CONFIG).is_file() and not any(
        (files.directory / name).exists() for name in (WEIGHTS_FILE, INDEX_FILE)
    )


def load_adapter(files: CheckpointFiles) -> LoraCheckpoint:
    """Load an adapter. Settings that would change the model in an unsupported way are a UserError."""
    # newer versions write more keys, which have no effect at their defaults
    values = {
        key: value for key, value in (files.read_json(ADAPTER_CONFIG) or {}).items() if value not in ({}, [])
    }
    weights_path = files.directory / ADAPTER_WEIGHTS
    unused = {key for key, value in values.items() if value is False and key not in _MEANINGFUL_FALSE}
    reader = ConfigReader(
        {key: value for key, value in values.items() if key not in unused}, files.directory / ADAPTER_CONFIG
    )
    reader.ignore(*_IGNORED_KEYS)
    reader.require("peft_type", "LORA")
    for other in _UNSUPPORTED_FLAGS:
        reader.require(other, False)
    for key, expected in _UNSUPPORTED_KEYS.items():
        if reader.has(key):
            raise reader.value_error(key, expected)
    if reader.values.get("init_lora_weights", True) not in _NEUTRAL_INITS:
        raise reader.value_error("init_lora_weights", "one that does not change the checkpoint")
    alpha, use_rslora = reader.get_float("lora_alpha", 8), reader.get_bool("use_rslora", False)
    section = reader.get_section("alpha_pattern")
    names = list(section.values) if section else []
    if any(not re.fullmatch(r"[\w.]+", name) for name in names):
        raise reader.value_error("alpha_pattern", "numbers by module name; patterns are not supported")
    module_alphas = {name: section.get_float(name) for name in names} if section else {}
    reader.reject_unknown()
    replacements: dict[str, TensorEntry] = {}
    halves: dict[str, dict[str, TensorEntry]] = {}
    for stored, entry in files.open_tensors(ADAPTER_WEIGHTS).items():
        name = stored.removeprefix(_PEFT_PREFIX).replace(".base_layer.", ".")
        if match := _LORA_NAME.fullmatch(name):
            if entry.dtype not in READABLE_DTYPES:
                known = ", ".join(READABLE_DTYPES)
                raise UserError(f"{weights_path}: {stored} is {entry.dtype}, expected one of {known}")
            halves.setdefault(match[1], {})[match[2]] = entry
        elif "lora_" in name:
            raise UserError(f"{weights_path} holds {stored}; only lora_A and lora_B are supported")
        else:
            replacements[name] = entry
    deltas = {}
    for module, parts in halves.items():
        a, b = (parts[half].load() if half in parts else torch.empty(0) for half in "AB")
        if a.ndim != 2 or b.ndim != 2 or not 0 < len(a) == b.size(1):
            raise UserError(f"{weights_path}: lora_A and lora_B of {module} do not match")
        module_alpha = next(
            (value for key, value in module_alphas.items() if f".{module}".endswith(f".{key}")), alpha
        )
        scale = module_alpha / (len(a) ** 0.5 if use_rslora else len(a))
        deltas[f"{module}.weight"] = LoraDelta(a, b, scale, "lora_embedding" in parts["A"].name)
    # copies that PEFT writes of modules stored under their own names
    originals = [name for name in replacements if not _COPY_NAME.fullmatch(name)]
    replacements = {
        name: entry
        for name, entry in replacements.items()
        if not (copy := _COPY_NAME.fullmatch(name))
        or not any(other.startswith(copy[1]) for other in originals)
    }
    return LoraCheckpoint(files.directory, _base_checkpoint(reader), replacements, deltas)


def _base_checkpoint(reader: ConfigReader) -> CheckpointFiles:
    """Return the files of the base checkpoint, downloading them if necessary."""
    name, revision = reader.values.get("base_model_name_or_path"), reader.values.get("revision")
    if not name or not isinstance(name, str):
        raise reader.value_error("base_model_name_or_path", "the base checkpoint, a directory or owner/name")
    if not isinstance(revision, str | None):
        raise reader.value_error("revision", "the revision of the checkpoint on the hub")
    if not Path(name).is_dir() and not is_repo_id(name):
        raise reader.value_error("base_model_name_or_path", "an existing directory, or owner/name on the hub")
    base = CheckpointFiles(Path(name) if Path(name).is_dir() else fetch_checkpoint(name, revision))
    if is_adapter(base):
        raise reader.value_error(
            "base_model_name_or_path", "a full checkpoint; this one is itself an adapter"
        )
    return base


StoredTensor = TensorEntry | AdaptedTensor


def apply_adapter(
    family: ModelFamily,
    config: ModelConfig,
    entries: Mapping[str, TensorEntry],
    replacements: Mapping[str, TensorEntry],
    deltas: Mapping[str, LoraDelta],
    adapter_dir: Path,
) -> tuple[ModelConfig, dict[str, StoredTensor]]:
    """Return the config and the tensors of the adapted checkpoint.

    ``replacements`` take the place of the checkpoint's tensors and ``deltas`` are added to them. PEFT treats
    an embedding and the head tied to it as two tensors: if only one of them is changed, the other keeps its
    value. ``vocab_size`` is the number of rows of the embedding.
    """
    tied = _tied_names(family, config, entries, {*replacements, *deltas})
    # PEFT replaced the tensor itself: it is the base of a delta, or it has more rows
    base = {
        of: replacements[of]
        if of in replacements and (of in deltas or replacements[of].shape != entries[of].shape)
        else entries[of]
        for of in tied.values()
    }
    copies = {name: base[of] for name, of in tied.items()}
    if homeless := sorted(replacements.keys() - entries.keys() - copies.keys()):
        raise UserError(f"{adapter_dir} has {homeless[0]}, which is not in the checkpoint")
    tensors = add_lora_deltas(family, {**entries, **copies, **replacements}, deltas, adapter_dir)
    untied_config = config.model_copy(
        update={"tie_embeddings": "inputs" if config.kind == "encoder-decoder" else "none"}
    )
    places = {row.hf_name for row in family.weight_map if row.condition(untied_config)}
    heads = {row.hf_name for row in family.weight_map if row.param_names == (HEAD_WEIGHT,)}
    for name, of in tied.items():
        same_shape = tensors[name].shape == tensors[of].shape
        # a fully saved module may be fp32 in an adapter of a bf16 checkpoint
        if same_shape and torch.allclose(tensors[name].load().float(), tensors[of].load().float()):
            del tensors[name]
        elif name in heads and of in places:
            config = untied_config
        else:
            raise UserError(
                f"{adapter_dir} changes only one of {name} and {of}, which are tied in the checkpoint"
            )
    rows = max(
        (sum(tensors[of].shape[:1]) for of in {*family.tied_weights.values()} & replacements.keys()),
        default=0,
    )
    return config.model_copy(update={"vocab_size": rows or config.vocab_size}), tensors


def with_adapter_classes(
    family: ModelFamily,
    hf_config: dict[str, Any],
    entries: Mapping[str, TensorEntry],
    replacements: Mapping[str, TensorEntry],
) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Return config.json and the tensors, those of a classifier if the adapter brings a classification head.

    Other heads of the checkpoint are dropped. Classes without names are numbered.
    """
    table = family.rules_for("Classifier") if "Classifier" in family.architectures else ()
    head = next((row.hf_name for row in table if row.param_names == ("classifier.weight",)), "")
    if head not in replacements:
        return hf_config, dict(entries)
    n, names = replacements[head].shape[0], hf_config.get("id2label")
    labels = names if isinstance(names, dict) and len(names) == n else None
    classes = {"architectures": [family.architectures["Classifier"]], "num_labels": n, "id2label": labels}
    new_entries = {name: entry for name, entry in replacements.items() if not name.startswith(family.prefix)}
    return hf_config | classes, {
        name: entry for name, entry in entries.items() if name.startswith(family.prefix)
    } | new_entries


def add_lora_deltas(
    family: ModelFamily,
    entries: Mapping[str, TensorEntry],
    deltas: Mapping[str, LoraDelta],
    adapter_dir: Path,
) -> dict[str, StoredTensor]:
    """Return the checkpoint's tensors with LoRA deltas added."""
    transposed_names = {
        row.hf_name for row in family.weight_map if row.transform in (TRANSPOSE, CONCAT_TRANSPOSE)
    }
    tensors: dict[str, StoredTensor] = dict(entries)
    for name, low in deltas.items():
        if re.sub(r"\b\d+\b", "{n}", name) in transposed_names:
            low = low._replace(is_transposed=True)
        if name not in entries:
            raise UserError(
                f"{adapter_dir} changes {name}, which the checkpoint does not have as a separate tensor"
            )
        if entries[name].shape != low.shape:
            raise UserError(
                f"{adapter_dir} changes {name} by {list(low.shape)}, and it is {list(entries[name].shape)}"
            )
        tensors[name] = AdaptedTensor(entries[name], low)
    return tensors


def _tied_names(
    family: ModelFamily, config: ModelConfig, entries: Mapping[str, TensorEntry], changed_names: set[str]
) -> dict[str, str]:
    """Map each tied name to the tensor it shares, if the adapter changes either of the two."""
    if config.tie_embeddings != "all" or not config.lm_head or config.labels:
        return {}
    return {
        name: of
        for name, of in family.tied_weights.items()
        if name.endswith(".weight") and of in entries and changed_names & {name, of}
    }
