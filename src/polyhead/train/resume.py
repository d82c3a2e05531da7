"""Checks before a run starts or resumes in a directory."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.manifest import MANIFEST_FILE
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.config.yaml_io import MAX_RECIPE_BYTES
from polyhead.core.atomic_io import file_exists, read_regular_file
from polyhead.core.errors import UserError
from polyhead.core.registry import SCHEDULE
from polyhead.run.recipe import parse_saved_recipe
from polyhead.run.run_directory import (
    RECIPE_FILE,
    has_weights,
    hash_text_files,
    read_run_manifest,
    warn_changed_files,
)

# keys that may change on resume: they do not affect the weights of a step (steps and epochs: see check_rates)
_CHANGEABLE_TRAIN_KEYS = (
    "steps",
    "epochs",
    "log_every",
    "explain_every",
    "keep",
    "average_checkpoints",
    "patience",
    "tensorboard",
    "log",
    "recompute",
    "parallel",
    "threads",
    "timeout",
)
DESCRIPTION_FILES = (
    "README.md",
    "config.json",
    "generation_config.json",
    MANIFEST_FILE,
    "recipe.yaml",
    "target_tokenizer.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_WRITTEN_FILES = (*DESCRIPTION_FILES, "metrics.jsonl", "baseline.json", "tracker.json", "checkpoints/latest")
CHANGEABLE_KEYS = {f"train.{name}" for name in _CHANGEABLE_TRAIN_KEYS}


def is_started(out: Path) -> bool:
    """Whether a directory has a run, finished or not; otherwise ``--resume`` starts it."""
    return file_exists(out / RECIPE_FILE) or has_weights(out)


def check_directory(recipe: Recipe, resume: bool) -> Recipe | None:
    """Raise a UserError if a run must not start, or resume, in the directory ``recipe.out``.

    A directory with a run is used only with ``resume``, and only with the recipe of that run, which is
    returned.
    """
    recipe_file = recipe.out / RECIPE_FILE
    has_run = has_weights(recipe.out)
    if recipe.out.exists() and not recipe.out.is_dir():
        raise UserError(f"out: {recipe.out} is a file; expected a directory")
    for path in (recipe.out / name for name in _WRITTEN_FILES):
        if path.is_dir():  # an error now, and not when training writes the file, after its last step
            raise UserError(f"{path} is a directory; expected a file")
    if not resume:
        if has_run:
            raise UserError(
                f"{recipe.out} already has a run; continue with --resume, or choose another "
                "directory with out=..."
            )
        existing_files = [name for name in DESCRIPTION_FILES if (recipe.out / name).exists()]
        # every run writes metrics.jsonl at its start
        if existing_files and not (recipe.out / "metrics.jsonl").exists():
            raise UserError(
                f"{recipe.out} holds {existing_files[0]}, which does not belong to a run and would "
                "be overwritten; choose another directory with out=..."
            )
        return None
    if not file_exists(recipe_file):
        raise UserError(
            f"--resume: the run in {recipe.out} has lost its recipe.yaml; restore it, or start a new run "
            "with out=..."
        )
    if has_run and not checkpoint.list_steps(recipe.out / "checkpoints"):
        raise UserError(f"--resume: {recipe.out} has a finished model, but no checkpoint to continue from")
    if manifest := read_run_manifest(recipe.out):
        warn_changed_files(recipe.out, manifest, hash_text_files(recipe.out))
    old_recipe = parse_saved_recipe(read_regular_file(recipe_file, max_bytes=MAX_RECIPE_BYTES), recipe_file)
    changed_keys = [
        key
        for section in ("tokenizer", "model", "train")
        for key in list_differences(getattr(old_recipe, section), getattr(recipe, section), section)
        if key not in CHANGEABLE_KEYS
    ]
    data_keys = list_differences(old_recipe.data, recipe.data, "data")
    changed_keys += [key for key in data_keys if key in ("data.max_len", "data.augment", "data.temperature")]
    both = (old_recipe.data.list_corpora("train"), recipe.data.list_corpora("train"))
    weights = [[corpus.weight for corpus in corpora] for corpora in both]
    changed_keys += ["weights in data.train"] * (weights[0] != weights[1])
    changed_keys += [
        name for name in ("task", "distill") if getattr(old_recipe, name) != getattr(recipe, name)
    ]
    if changed_keys:
        raise UserError(
            f"--resume: {', '.join(changed_keys)} differ{'s' * (len(changed_keys) == 1)} from the run's own "
            f"recipe; use {recipe_file}, or start a new run with out=..."
        )
    return old_recipe


def list_differences(a: BaseModel, b: BaseModel, prefix: str) -> list[str]:
    """Keys in which two sections of a recipe differ."""
    return [f"{prefix}.{name}" for name in type(a).model_fields if getattr(a, name) != getattr(b, name)]


def check_same_data(
    saved_checkpoint: checkpoint.Checkpoint, extra: dict[str, str], old_recipe: Recipe, recipe: Recipe
) -> None:
    """Raise a UserError if the digests of the tokenizer or the text differ from those in the checkpoint."""
    out, changed_keys = recipe.out, list_differences(old_recipe.data, recipe.data, "data")
    if saved_checkpoint.extra.get("tokenizer_sha256") != extra["tokenizer_sha256"]:
        raise UserError(
            f"{out / 'tokenizer.json'} is not the tokenizer that {saved_checkpoint.path} was trained with"
        )
    for split in ("train", "valid"):
        if saved_checkpoint.extra.get(split) != extra[split]:
            raise UserError(
                f"--resume: the {split} text differs from the text of the run"
                + (f" ({', '.join(changed_keys)} changed)" if changed_keys else "")
                + "; restore it, or start a new run with out=..."
            )


def check_rates(config: TrainConfig, d_model: int, n_done: int, old_steps: int, new_steps: int) -> None:
    """Raise a UserError if ``new_steps`` would change learning rates of the ``n_done`` first steps."""
    if new_steps < n_done:
        raise UserError(
            f"--resume: the run has finished {n_done} steps, more than {new_steps}; set at least {n_done}, "
            "or start a new run with out=..."
        )
    old_schedule, new_schedule = (
        SCHEDULE.build(config.schedule, d_model, steps) for steps in (old_steps, new_steps)
    )
    if any(old_schedule(step) != new_schedule(step) for step in range(1, n_done + 1)):
        raise UserError(
            f"--resume: the run started with {old_steps} steps; with {new_steps} the schedule "
            f"{config.schedule.name!r} would have given the {n_done} finished steps other learning rates; "
            "keep the number, or start a new run with out=..."
        )
