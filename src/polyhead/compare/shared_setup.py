"""Setup before training: the tokenizer of a design, and the run whose weights it starts from, if any."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from polyhead.compare.plan import ComparisonPlan, Design, hash_value
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError, prefix_errors
from polyhead.core.i18n import tr
from polyhead.core.registry import TASK
from polyhead.data.readers.files import fingerprint
from polyhead.run.load import load
from polyhead.run.recipe_tokenizer import make_tokenizer
from polyhead.run.run import Run
from polyhead.train.init_from import check_parts, inherit_settings
from polyhead.train.tasks.base import TaskFactory
from polyhead.viz.run_record import format_seconds


def check_init_from(plan: ComparisonPlan) -> ComparisonPlan:
    """Take over the model sizes of runs that designs are initialised from.

    A design that does not fit its run gets an error. A missing run, or a missing teacher, is a UserError.
    """
    return plan.with_designs(_check_design(row) for row in plan.designs)


def _check_design(design: Design) -> Design:
    recipe = design.recipe
    if recipe is None:
        return design
    with prefix_errors("init_from.run"):
        start = load_origin(recipe.init_from.run) if recipe.init_from else None
    for teacher in recipe.distill.teacher if recipe.distill else ():
        with prefix_errors("distill.teacher"):
            load_origin(teacher)
    try:
        recipe = inherit_settings(recipe, start)
        task: TaskFactory = TASK.get(recipe.task.name)
        task.check(recipe)
        check_parts(recipe, start)
        for split in ("valid", "test"):  # each must have usable text
            if files := getattr(recipe.data, split):
                data = recipe.data.model_copy(update={"train": files, "valid": files})
                with prefix_errors(f"data.{split}"):
                    texts = task.iter_texts(recipe.model_copy(update={"data": data}))
                    next(iter(texts), None)
    except UserError as error:
        if design.is_base:
            raise
        return replace(design, recipe=None, error=str(error))
    return replace(design, recipe=recipe)


@lru_cache(maxsize=4)
def load_origin(run: str) -> Run:
    """Load a run that designs are initialised from or distilled from."""
    return load(run, device="cpu")


def ensure_tokenizer(recipe: Recipe, out: Path) -> Path:
    """Directory of a recipe's tokenizer, trained if it does not exist; designs with equal settings share one.

    A design that is initialised from a run has the tokenizer of that run, or one with further tokens.
    """
    origin = load_origin(recipe.init_from.run).tokenizer if recipe.init_from is not None else None
    if origin is not None and recipe.tokenizer.extend is None:
        tokenizer = origin
        directory = out / "shared" / f"tokenizer-{tokenizer.sha256[:16]}"
        if not (directory / "tokenizer.json").is_file():
            tokenizer.save(directory)
        return directory
    corpora = recipe.data.list_corpora("train")
    settings = {
        "tokenizer": recipe.tokenizer.model_dump(mode="json"),
        **({"origin": origin.sha256} if origin else {}),
        "text": fingerprint_files(recipe, "train"),
        # which part of the text is used and how it is read; empty with default settings
        **recipe.data.model_dump(
            include={"valid_fraction", "document_separator", "text", "format"}, exclude_defaults=True
        ),
        **({"corpora": [corpus.model_dump() for corpus in corpora]} if corpora else {}),
    }
    directory = out / "shared" / f"tokenizer-{hash_value(settings)}"
    if not (directory / "tokenizer.json").is_file():
        start = time.monotonic()
        part = TASK.get(recipe.task.name)
        tokenizer = make_tokenizer(recipe, lambda: part.iter_texts(recipe), origin)
        tokenizer.save(directory)
        elapsed = format_seconds(time.monotonic() - start)
        print_status(tr("tokenizer: {count:,} tokens in {time}", count=tokenizer.vocab_size, time=elapsed))
    return directory


def tokenizer_fingerprint(recipe: Recipe) -> str:
    """Fingerprint of a design's tokenizer: equal fingerprints give equal tokens for the same text."""
    settings = json.dumps(recipe.tokenizer.model_dump(mode="json"))
    if recipe.init_from is not None:
        sha256 = load_origin(recipe.init_from.run).tokenizer.sha256
        return sha256 if recipe.tokenizer.extend is None else sha256 + settings
    return settings


def fingerprint_files(recipe: Recipe, split: str) -> dict[str, str]:
    """File names of a split with the digests of their text."""
    return {path.name: fingerprint(path)[:16] for path in recipe.data.split_paths(split)}


def print_status(line: str) -> None:
    """Print a status line to stderr."""
    print(line, file=sys.stderr, flush=True)
