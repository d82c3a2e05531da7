"""Low-rank adapters as PEFT writes them: changes of a checkpoint, which is named and not held (Hu et al., 2021)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.errors import UserError
from polyhead.hf import files
from polyhead.hf.files import Entry, entries, read_json
from polyhead.hf.given import Given
from polyhead.hf.hub import fetch, is_name

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
LOW = re.compile(r"(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
# one more of a module that is there by its own name
COPY = re.compile(r"(.+\.)(?:modules_to_save|original_module)\..+")
# what has no say in what is added, or is looked at elsewhere
SILENT = (
    "task_type", "inference_mode", "peft_version", "base_model_name_or_path", "revision", "auto_mapping", "megatron_core",
    "r", "rank_pattern", "bias", "fan_in_fan_out", "lora_dropout", "init_lora_weights", "modules_to_save", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying", "qalora_group_size", "arrow_config",
    "corda_config", "eva_config", "lora_ga_config", "runtime_config", "ephemeral_gpu_offload",
)  # fmt: skip
OTHERS = ("use_dora", "lora_bias", "use_qalora")  # ways to add something else
UNBUILT = {
    "target_parameters": "null: LoRA of parameters that are no linear map's, such as those of experts, is not built",
    "layer_replication": "null: layers that are repeated are not built",
}
FLAGS = ("use_rslora", "init_lora_weights")  # whose false says something
BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")  # that leave the checkpoint as it is


class Low(NamedTuple):
    """What is added to one weight: scale · B A, turned where the weight is stored so."""

    a: Tensor  # (rank, in)
    b: Tensor  # (out, rank)
    scale: float
    turned: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        shape = self.b.size(0), self.a.size(1)
        return shape[::-1] if self.turned else shape

    def change(self) -> Tensor:
        """In the shape of the weight."""
        change = self.scale * (self.b.float() @ self.a.float())
        return change.T if self.turned else change


class Changed(NamedTuple):
    """A tensor of a file, and what is added to it."""

    entry: Entry
    low: Low

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    @property
    def dtype(self) -> str:
        return self.entry.dtype

    def tensor(self) -> Tensor:
        return self.entry.tensor().float() + self.low.change()


class Adapter(NamedTuple):
    """The changes of a checkpoint, by its names of weights."""

    directory: Path
    base: Path  # the checkpoint
    whole: Mapping[str, Entry]  # weights in the place of its own
    added: Mapping[str, Low]


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds changes of another checkpoint, and none itself."""
    return (directory / CONFIG).is_file() and not any(
        (directory / name).exists() for name in (files.WEIGHTS, files.INDEX)
    )


def open_adapter(directory: Path) -> Adapter:
    """Everything of it; what would change a model in another way than is built here is a UserError."""
    # newer versions write more keys, which say nothing as long as nobody uses them
    values = {
        key: value for key, value in (read_json(directory, CONFIG) or {}).items() if value not in ({}, [])
    }
    unused = {key for key, value in values.items() if value is False and key not in FLAGS}
    given = Given({key: value for key, value in values.items() if key not in unused}, directory / CONFIG)
    given.passed(*SILENT)
    given.only("peft_type", "LORA")
    for other in OTHERS:
        given.only(other, False)
    for key, wanted in UNBUILT.items():
        if given.has(key):
            raise given.wrong(key, wanted)
    if given.values.get("init_lora_weights", True) not in BEGINNINGS:
        raise given.wrong("init_lora_weights", "one that leaves the checkpoint as it is")
    alpha, root = given.number("lora_alpha", 8), given.flag("use_rslora", False)
    own = _alphas(given)
    given.finish()
    whole: dict[str, Entry] = {}
    halves: dict[str, dict[str, Entry]] = {}
    for stored, entry in entries(directory, WEIGHTS).items():
        name = stored.removeprefix(PREFIX).replace(".base_layer.", ".")
        if found := LOW.fullmatch(name):
            halves.setdefault(found[1], {})[found[2]] = entry
        elif "lora_" in name:
            raise UserError(f"{directory / WEIGHTS} holds {stored}, and only lora_A and lora_B are built")
        else:
            whole[name] = entry
    added = {}
    for module, parts in halves.items():
        a, b = (parts[half].tensor() if half in parts else torch.empty(0) for half in "AB")
        if a.ndim != 2 or b.ndim != 2 or not 0 < len(a) == b.size(1):
            raise UserError(f"{directory / WEIGHTS}: lora_A and lora_B of {module} do not fit together")
        mine = next((value for key, value in own.items() if f".{module}".endswith(f".{key}")), alpha)
        scale = mine / (len(a) ** 0.5 if root else len(a))
        added[f"{module}.weight"] = Low(a, b, scale, "lora_embedding" in parts["A"].name)
    whole = {name: entry for name, entry in whole.items() if not _is_copy(name, whole)}
    return Adapter(directory, _base(given), whole, added)


def _alphas(given: Given) -> dict[str, float]:
    """Those of some modules, by how their names end."""
    section = given.section("alpha_pattern")
    names = list(section.values) if section else []
    if any(not re.fullmatch(r"[\w.]+", name) for name in names):
        raise given.wrong("alpha_pattern", "numbers by the names of modules; patterns are not built")
    return {name: section.number(name) for name in names} if section else {}


def _is_copy(name: str, among: Iterable[str]) -> bool:
    """Whether a name of an adapter's file is one more of what is there by its own, as PEFT writes it of some modules."""
    found = COPY.fullmatch(name)
    return found is not None and any(
        other.startswith(found[1]) and not COPY.fullmatch(other) for other in among
    )


def _base(given: Given) -> Path:
    """The directory of the checkpoint, fetched if it is none here."""
    name, revision = given.values.get("base_model_name_or_path"), given.values.get("revision")
    if not name or not isinstance(name, str):
        raise given.wrong(
            "base_model_name_or_path", "the checkpoint that it changes, a directory or owner/name"
        )
    if not isinstance(revision, str | None):
        raise given.wrong("revision", "that of the checkpoint on the hub")
    if not Path(name).is_dir() and not is_name(name):
        raise given.wrong("base_model_name_or_path", "a directory that is there, or owner/name on the hub")
    base = Path(name) if Path(name).is_dir() else fetch(name, revision)
    if is_adapter(base):
        raise given.wrong("base_model_name_or_path", "a whole checkpoint; this one is an adapter itself")
    return base
