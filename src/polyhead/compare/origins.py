"""What designs have before they learn: a tokenizer, and where a recipe says so the weights of another run."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from polyhead.analysis.forecast import duration
from polyhead.compare.plan import Plan, Row, digest
from polyhead.core.i18n import tr
from polyhead.data.files import fingerprint
from polyhead.errors import UserError, at
from polyhead.loading import load
from polyhead.recipe import Recipe
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.learn import train_tokenizer
from polyhead.train.start import check_parts, resolved
from polyhead.train.tasks.base import TaskPart


def begun(plan: Plan) -> Plan:
    """The plan with the sizes of the runs that its designs begin with; one that does not go with its run says so.

    A run, or a teacher, that is not there is a UserError.
    """
    return plan.with_rows(_begun(row) for row in plan.rows)


def _begun(row: Row) -> Row:
    recipe = row.recipe
    if recipe is None:
        return row
    with at("start.run"):
        start = origin(recipe.start.run) if recipe.start else None
    for teacher in recipe.distill.teacher if recipe.distill else ():
        with at("distill.teacher"):
            origin(teacher)
    try:
        recipe = resolved(recipe, start)
        TASK.get(recipe.task.name).check(recipe)
        check_parts(recipe, start)
        _look_into(recipe)
    except UserError as error:
        if row.is_base:
            raise
        return replace(row, recipe=None, refused=str(error))
    return replace(row, recipe=recipe)


def _look_into(recipe: Recipe) -> None:
    """The text that is measured has something of use in it, or a UserError says so before anything is trained."""
    part: TaskPart = TASK.get(recipe.task.name)
    for split in ("valid", "test"):
        if files := getattr(recipe.data, split):
            whole = recipe.data.model_copy(update={"train": files, "valid": files})
            with at(f"data.{split}"):
                next(iter(part.texts(recipe.model_copy(update={"data": whole}))), None)


@lru_cache(maxsize=4)
def origin(run: str) -> Run:
    """A run that designs begin with, or learn from."""
    return load(run, device="cpu")


def tokenizer_of(recipe: Recipe, out: Path) -> Path:
    """The directory of the tokenizer of a recipe, trained if it is not there yet: one for all that ask for the same.

    A design that begins with a run has that of the run.
    """
    if recipe.start is not None:
        tokenizer = origin(recipe.start.run).tokenizer
        directory = out / "shared" / f"tokenizer-{tokenizer.sha256[:16]}"
        if not (directory / "tokenizer.json").is_file():
            tokenizer.save(directory)
        return directory
    asked = {
        "tokenizer": recipe.tokenizer.model_dump(mode="json"),
        "text": text_of(recipe, "train"),
        # which part of it that is, and how it is read; nothing, where it is the whole as it stands
        **recipe.data.model_dump(
            include={"valid_share", "documents", "text", "format"}, exclude_defaults=True
        ),
    }
    directory = out / "shared" / f"tokenizer-{digest(asked)}"
    if not (directory / "tokenizer.json").is_file():
        start = time.monotonic()
        texts = TASK.get(recipe.task.name).texts(recipe)
        tokenizer = train_tokenizer(
            texts, recipe.tokenizer.kind, recipe.tokenizer.vocab_size, recipe.tokenizer.sentinels
        )
        tokenizer.save(directory)
        took = duration(time.monotonic() - start)
        say(tr("tokenizer: {count:,} tokens in {time}", count=tokenizer.vocab_size, time=took))
    return directory


def tokens_of(recipe: Recipe) -> str:
    """What tells its tokens from those of other designs: the same text makes the same tokens where this is the same."""
    if recipe.start is not None:
        return origin(recipe.start.run).tokenizer.sha256
    return json.dumps(recipe.tokenizer.model_dump(mode="json"))


def text_of(recipe: Recipe, split: str) -> dict[str, str]:
    """The files of a split with the digests of their text."""
    return {path.name: fingerprint(path)[:16] for path in recipe.data.paths(split)}


def say(line: str) -> None:
    """Tell the person who waits."""
    print(line, file=sys.stderr, flush=True)
