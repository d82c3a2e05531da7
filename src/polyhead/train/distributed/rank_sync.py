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
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.data.readers.files import fingerprint
from polyhead.nn.state import named_state
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distributed.process_group import ProcessGroup


def broadcast_checkpoint(checkpoint: Checkpoint | None, ranks: ProcessGroup) -> Checkpoint | None:
    """Broadcast the checkpoint read by rank 0; the other ranks need no access to its files."""
    if ranks.world_size == 1:
        return checkpoint

    def describe_checkpoint() -> dict[str, Any] | None:
        if checkpoint is None:
            return None
        shapes = {
            group: {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in entries.items()}
            for group, entries in checkpoint.tensors.items()
        }
        return {"step": checkpoint.step, "path": str(checkpoint.path), "shapes": shapes,
            "state": checkpoint.state, "extra": checkpoint.extra}  # fmt: skip

    description = ranks.on_rank0(describe_checkpoint)
    if description is None:
        return None
    if checkpoint is None:
        tensors = {
            group: {
                name: torch.empty(shape, dtype=getattr(torch, dtype))
                for name, (dtype, *shape) in entries.items()
            }
            for group, entries in description["shapes"].items()
        }
        checkpoint = Checkpoint(
            description["step"],
            Path(description["path"]),
            tensors,
            description["state"],
            description["extra"],
        )
    for group in description["shapes"]:
        ranks.broadcast(checkpoint.tensors[group].values())
    return checkpoint


def broadcast_tokenizer(ranks: ProcessGroup, make_tokenizer: Callable[[], Tokenizer]) -> Tokenizer:
    """Broadcast the tokenizer of rank 0."""
    if ranks.world_size == 1:
        return make_tokenizer()
    tokenizers: list[Tokenizer] = []

    def read_files() -> dict[str, str]:
        tokenizers.append(make_tokenizer())
        with TemporaryDirectory() as directory:
            tokenizers[0].save(directory)
            return {path.name: path.read_text(encoding="utf-8") for path in Path(directory).iterdir()}

    content = ranks.on_rank0(read_files)
    if tokenizers:
        return tokenizers[0]
    with TemporaryDirectory() as directory:
        for name, text in content.items():
            (Path(directory) / name).write_text(text, encoding="utf-8")
        return Tokenizer.load(directory)


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
