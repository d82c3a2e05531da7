"""Open a published checkpoint: its configs, its tensors and the adapter that changes it, each read once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from polyhead.core.errors import UserError, prefix_errors, unknown_name_error
from polyhead.hf.checkpoint_files import CheckpointFiles, TensorEntry
from polyhead.hf.family import FAMILY, ModelFamily
from polyhead.hf.lora import LoraCheckpoint, is_adapter, load_adapter
from polyhead.tokenizers.files import FILE as TOKENIZER

T = TypeVar("T")

# multimodal families whose text-only models are supported
_MULTIMODAL_FAMILIES = {
    "gemma3": "This Gemma 3 is multimodal; text-only models ('gemma3_text'), such as google/gemma-3-1b-it, "
    "are supported"
}


class PublishedCheckpoint(NamedTuple):
    """A checkpoint of a known family. Tensors have the names of the full model and are loaded on demand."""

    files: CheckpointFiles
    tokenizer_files: CheckpointFiles  # those of the adapter if it has a tokenizer
    family: ModelFamily
    config: dict[str, Any]  # config.json
    generation_config: dict[str, Any] | None  # generation_config.json
    tensors: dict[str, TensorEntry]
    adapter: LoraCheckpoint | None

    @property
    def model_type(self) -> str:
        """Name of the family."""
        return str(self.config["model_type"])

    @property
    def generation(self) -> dict[str, Any]:
        """The generation settings, which older checkpoints have in config.json."""
        return self.config if self.generation_config is None else self.generation_config

    @property
    def generation_path(self) -> Path:
        """The file of the generation settings."""
        name = "config.json" if self.generation_config is None else "generation_config.json"
        return self.files.directory / name


def read_model_type(files: CheckpointFiles) -> str | None:
    """Return model_type of config.json, or None if it is missing or unreadable."""
    try:
        kind = (files.read_json("config.json") or {}).get("model_type")
    except UserError:
        return None
    return kind if isinstance(kind, str) else None


def open_checkpoint(files: CheckpointFiles) -> PublishedCheckpoint:
    """Open a checkpoint, or an adapter with the checkpoint that it changes."""
    adapter = load_adapter(files) if is_adapter(files) else None
    adapter_files, files = files, adapter.base if adapter else files
    tokenizer_files = adapter_files if adapter_files.find(TOKENIZER) else files
    config, generation_config = files.read_json("config.json"), files.read_json("generation_config.json")
    if config is None:
        raise UserError(f"{files.directory} has no config.json")
    family = _find_family(config.get("model_type"), files.directory / "config.json")
    tensors = _normalize_names(family, files.open_tensors())
    if adapter:
        adapter = adapter._replace(
            replacements=_normalize_names(family, adapter.replacements),
            deltas=_normalize_names(family, adapter.deltas),
        )
    return PublishedCheckpoint(files, tokenizer_files, family, config, generation_config, tensors, adapter)


def _find_family(kind: object, path: Path) -> ModelFamily:
    if isinstance(kind, str) and kind in _MULTIMODAL_FAMILIES:
        raise UserError(
            f"{path}: model_type is {kind!r}, which is not supported. {_MULTIMODAL_FAMILIES[kind]}"
        )
    if not isinstance(kind, str) or kind not in FAMILY.names():
        with prefix_errors(str(path)):
            raise unknown_name_error("model_type", kind, FAMILY.names())
    family: ModelFamily = FAMILY.get(kind)
    return family


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
