"""Apply a PEFT adapter to a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import TensorEntry
from polyhead.hf.family import HEAD_WEIGHT, ModelFamily
from polyhead.hf.lora import AdaptedTensor, LoraDelta
from polyhead.hf.weight_map import CONCAT_TRANSPOSE, TRANSPOSE

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
