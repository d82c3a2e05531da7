"""What all ranks of a training have in common before its first step: from the first rank, or found to be the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import polyhead
from polyhead.data.files import fingerprint
from polyhead.errors import UserError
from polyhead.nn.weights import weights
from polyhead.recipe import Recipe
from polyhead.text.tokenizer import Tokenizer
from polyhead.train.checkpoint import Checkpoint
from polyhead.train.ranks import Ranks


def everywhere(saved: Checkpoint | None, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint that the first rank has read, on all of them: the others need not see its files."""
    if ranks.world == 1:
        return saved

    def described() -> dict[str, Any] | None:
        if saved is None:
            return None
        shapes = {
            group: {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in named.items()}
            for group, named in saved.tensors.items()
        }
        return {"step": saved.step, "path": str(saved.path), "shapes": shapes, "state": saved.state, "extra": saved.extra}  # fmt: skip

    told = ranks.tell(described)
    if told is None:
        return None
    if saved is None:
        tensors = {
            group: {
                name: torch.empty(shape, dtype=getattr(torch, dtype))
                for name, (dtype, *shape) in named.items()
            }
            for group, named in told["shapes"].items()
        }
        saved = Checkpoint(told["step"], Path(told["path"]), tensors, told["state"], told["extra"])
    for group in told["shapes"]:
        ranks.copy(saved.tensors[group].values())
    return saved


def from_first(ranks: Ranks, make: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer that the first rank has, on all of them."""
    if ranks.world == 1:
        return make()
    made: list[Tokenizer] = []

    def files() -> dict[str, str]:
        made.append(make())
        with TemporaryDirectory() as place:
            made[0].save(place)
            return {path.name: path.read_text(encoding="utf-8") for path in Path(place).iterdir()}

    content = ranks.tell(files)
    if made:
        return made[0]
    with TemporaryDirectory() as place:
        for name, text in content.items():
            (Path(place) / name).write_text(text, encoding="utf-8")
        return Tokenizer.load(place)


def check_alike(ranks: Ranks, recipe: Recipe, model: nn.Module, identity: Mapping[str, str]) -> None:
    """All ranks begin with the first one's weights; a UserError where anything else differs from what that one has."""
    if ranks.world == 1:
        return
    shapes = {name: list(w.shape) for name, w in weights(model).items()}
    own = {
        "the version of Polyhead": polyhead.__version__,
        "the version of PyTorch": torch.__version__,
        "the recipe": _told(recipe),
        "the tokenizer": identity["tokenizer_sha256"],
        "the training text": identity["train"],
        "the validation text": identity["valid"],
        "the test text": str([fingerprint(path) for path in recipe.data.paths("test")]),
        "the model": str(shapes),
        "the device": next(model.parameters()).device.type,
    }
    theirs = ranks.tell(lambda: own)
    if other := [name for name, fact in own.items() if theirs[name] != fact]:
        raise UserError(
            f"{', '.join(other)}: not the same as on rank 0; all machines need the same recipe, text and versions"
        )
    ranks.sum(0)  # where one has refused, none goes on
    tensors: dict[str, Tensor] = weights(model)
    ranks.copy(tensors.values())


def _told(recipe: Recipe) -> str:
    """The recipe without what machines may differ in: places, threads, patience."""
    tree = recipe.model_dump(mode="json")
    for section, key in (("data", "root"), ("data", "cache"), ("train", "threads"), ("train", "timeout")):
        del tree[section][key]
    return json.dumps({section: value for section, value in tree.items() if section != "out"})
