"""Before step 1: broadcast state from rank 0 and check that all ranks agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import polyhead
from polyhead.checkpoint.checkpoint import Checkpoint
from polyhead.checkpoint.safetensors_io import DescribedTensors, TensorSpec, describe_tensors
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.data.readers.files import fingerprint
from polyhead.nn.state import named_state
from polyhead.tokenizers.files import read_tokenizer_files
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distributed.process_group import ProcessGroup


class SharedTensors(DescribedTensors):
    """Tensors of rank 0, each broadcast when it is looked up, which all ranks do in the same order.

    So a rank needs memory for one of them at a time.
    """

    def __init__(
        self, specs: Mapping[str, TensorSpec], source: Mapping[str, Tensor] | None, ranks: ProcessGroup
    ) -> None:
        self.specs, self._source, self._ranks = specs, source, ranks

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape = self.specs[name]
        tensor = torch.empty(shape, dtype=dtype) if self._source is None else self._source[name]
        self._ranks.broadcast([tensor])
        return tensor


def share_tensors(
    read: Callable[[], Mapping[str, Mapping[str, Tensor]]], ranks: ProcessGroup
) -> dict[str, SharedTensors]:
    """Groups of tensors that rank 0 reads, for all ranks; the others need no access to its files."""
    groups: dict[str, Mapping[str, Tensor]] = {}

    def describe_groups() -> dict[str, dict[str, list[Any]]]:
        groups.update(read())
        return {
            group: {
                name: [str(spec.dtype).removeprefix("torch."), *spec.shape]
                for name, spec in describe_tensors(tensors).items()
            }
            for group, tensors in groups.items()
        }

    return {
        group: SharedTensors(
            {
                name: TensorSpec(getattr(torch, dtype), tuple(shape))
                for name, (dtype, *shape) in entries.items()
            },
            groups.get(group),
            ranks,
        )
        for group, entries in ranks.on_rank0(describe_groups).items()
    }


def share_checkpoint(checkpoint: Checkpoint | None, ranks: ProcessGroup) -> Checkpoint | None:
    """The checkpoint of rank 0 for all ranks, whose tensors are broadcast when they are looked up."""

    def describe_checkpoint() -> list[Any] | None:
        if checkpoint is None:
            return None
        return [checkpoint.step, str(checkpoint.path), checkpoint.state, checkpoint.extra]

    description = ranks.on_rank0(describe_checkpoint)
    if description is None:
        return None
    step, path, state, extra = description
    tensors = share_tensors(lambda: checkpoint.tensors if checkpoint else {}, ranks)
    return Checkpoint(step, Path(path), tensors, state, extra)


def broadcast_checkpoint(checkpoint: Checkpoint | None, ranks: ProcessGroup) -> Checkpoint | None:
    """Broadcast the checkpoint read by rank 0, whole, so that every rank has a copy in its memory."""
    if ranks.world_size == 1:
        return checkpoint
    shared = share_checkpoint(checkpoint, ranks)
    return shared and shared._replace(
        tensors={group: dict(tensors) for group, tensors in shared.tensors.items()}
    )


def broadcast_tokenizer(ranks: ProcessGroup, make_tokenizer: Callable[[], Tokenizer]) -> Tokenizer:
    """Broadcast the tokenizer of rank 0."""
    if ranks.world_size == 1:
        return make_tokenizer()
    tokenizers: list[Tokenizer] = []

    def read_files() -> dict[str, str]:
        tokenizers.append(make_tokenizer())
        with TemporaryDirectory() as directory:
            tokenizers[0].save(directory)
            return {name: text.decode() for name, text in read_tokenizer_files(Path(directory)).items()}

    contents = {name: text.encode() for name, text in ranks.on_rank0(read_files).items()}
    return tokenizers[0] if tokenizers else Tokenizer.parse(contents, Path())


def check_ranks_agree(
    ranks: ProcessGroup, recipe: Recipe, model: nn.Module, identity: Mapping[str, str]
) -> None:
    """Broadcast the weights of rank 0; a UserError if versions, recipe, data, model or device differ."""
    if ranks.world_size == 1:
        return
    shapes = {name: list(w.shape) for name, w in named_state(model).items()}
    facts = {
        "the version of Polyhead": polyhead.__version__,
        "the version of PyTorch": torch.__version__,
        "the recipe": _comparable_recipe(recipe),
        "the tokenizer": identity["tokenizer_sha256"],
        "the training text": identity["train"],
        "the validation text": identity["valid"],
        "the test text": str([fingerprint(path) for path in recipe.data.split_paths("test")]),
        "the model": str(shapes),
        "the device": next(model.parameters()).device.type,
    }
    rank0_facts = ranks.on_rank0(lambda: facts)
    if differences := [name for name, fact in facts.items() if rank0_facts[name] != fact]:
        raise UserError(
            f"{', '.join(differences)}: differs from rank 0; all machines require the same recipe, "
            "text and versions"
        )
    ranks.all_reduce(0)  # barrier: if one rank has raised, none continues
    tensors: dict[str, Tensor] = named_state(model)
    ranks.broadcast(tensors.values())


def _comparable_recipe(recipe: Recipe) -> str:
    """The recipe as JSON without the keys that may differ between machines: paths, threads, timeout."""
    tree = recipe.model_dump(mode="json")
    for section, key in (("data", "root"), ("data", "cache_dir"), ("train", "threads"), ("train", "timeout")):
        del tree[section][key]
    return json.dumps({section: value for section, value in tree.items() if section != "out"})
