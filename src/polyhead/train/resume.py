"""Whether a run may begin in a directory, or go on there as if it had never stopped."""

from __future__ import annotations

from pydantic import BaseModel

from polyhead.errors import UserError
from polyhead.recipe import Recipe, TrainConfig, load_recipe
from polyhead.registry import SCHEDULE
from polyhead.train import checkpoint

# what a run may change when it goes on: none of it alters the weights of a step (steps and epochs: see check_rates)
_CHANGEABLE = (
    "steps",
    "epochs",
    "log_every",
    "keep",
    "average",
    "patience",
    "tensorboard",
    "log",
    "threads",
    "timeout",
)
DESCRIPTION = (
    "README.md",
    "config.json",
    "generation_config.json",
    "recipe.yaml",
    "target_tokenizer.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
MAY_CHANGE = {f"train.{name}" for name in _CHANGEABLE}


def check_directory(recipe: Recipe, resume: bool) -> Recipe | None:
    """A directory with work in it is only touched by --resume, and only with the recipe that began it: returned."""
    written = recipe.out / "recipe.yaml"
    begun = bool(checkpoint.steps(recipe.out / "checkpoints")) or (recipe.out / "model.safetensors").is_file()
    if recipe.out.exists() and not recipe.out.is_dir():
        raise UserError(f"out: {recipe.out} is a file; name a directory")
    if not resume:
        if begun:
            raise UserError(
                f"{recipe.out} already holds a run; go on with --resume, or choose another place with out=..."
            )
        others = [name for name in DESCRIPTION if (recipe.out / name).exists()]
        if others and not (recipe.out / "metrics.jsonl").exists():  # what every run has from its first moment
            raise UserError(
                f"{recipe.out} holds {others[0]}, which no run wrote and this one would write over; choose another place with out=..."
            )
        return None
    if not written.is_file():
        raise UserError(f"--resume: there is no run in {recipe.out} yet; start it without --resume")
    if begun and not checkpoint.steps(recipe.out / "checkpoints"):
        raise UserError(f"--resume: {recipe.out} holds a finished model, but no checkpoint to go on from")
    before = load_recipe(written, made=True)
    changed = [
        key
        for section in ("tokenizer", "model", "train")
        for key in differences(getattr(before, section), getattr(recipe, section), section)
        if key not in MAY_CHANGE
    ]
    changed += ["data.max_len"] if before.data.max_len != recipe.data.max_len else []
    changed += [name for name in ("task", "distill") if getattr(before, name) != getattr(recipe, name)]
    if changed:
        raise UserError(
            f"--resume: {', '.join(changed)} differ{'s' * (len(changed) == 1)} from the run's own recipe; "
            f"use {written}, or start anew with out=..."
        )
    return before


def differences(a: BaseModel, b: BaseModel, under: str) -> list[str]:
    """The keys in which two sections of a recipe differ."""
    return [f"{under}.{name}" for name in type(a).model_fields if getattr(a, name) != getattr(b, name)]


def check_same(saved: checkpoint.Checkpoint, extra: dict[str, str], before: Recipe, recipe: Recipe) -> None:
    """The tokenizer and the text must be those that the checkpoint knows by their digests."""
    out, changed = recipe.out, differences(before.data, recipe.data, "data")
    if saved.extra.get("tokenizer_sha256") != extra["tokenizer_sha256"]:
        raise UserError(f"{out / 'tokenizer.json'} is not the tokenizer that {saved.path} was trained with")
    for split in ("train", "valid"):
        if saved.extra.get(split) != extra[split]:
            raise UserError(
                f"--resume: the {split} text is not what the run began with"
                + (f" ({', '.join(changed)} changed)" if changed else "")
                + "; put it back, or start anew with out=..."
            )


def check_rates(config: TrainConfig, d_model: int, done: int, before: int, now: int) -> None:
    """Another number of steps must leave those done as they were, and their learning rates."""
    if now < done:
        raise UserError(
            f"--resume: the run has {done} steps done, and is to have {now} now; give at least {done}, "
            "or start anew with out=..."
        )
    old, new = (SCHEDULE.build(config.schedule, d_model, steps) for steps in (before, now))
    if any(old(step) != new(step) for step in range(1, done + 1)):
        raise UserError(
            f"--resume: the run began with {before} steps; with {now} the schedule {config.schedule.name!r} would "
            f"have given the {done} steps done other learning rates; keep the number, or start anew with out=..."
        )
