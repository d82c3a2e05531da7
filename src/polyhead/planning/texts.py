"""The text of a recipe, or a sample of it where there is much, opened as training would open it."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from polyhead.recipe import Recipe
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.tokenizer import Tokenizer, train_tokenizer
from polyhead.train.distill import distilled, open_teachers
from polyhead.train.reporting import Reporters
from polyhead.train.tasks.base import RunTask, TaskPart

MOST = 8 << 20  # bytes of a split that are read whole; of more, blocks of lines from all over
BLOCK = 500  # lines that stay together, so that documents mostly do
LOOKED_AT = 24  # batches of an epoch that stand for all


class Texts(NamedTuple):
    """What was found out about the training text."""

    task: RunTask
    tokenizer: Tokenizer
    lines: int  # of the first training file
    nbytes: int  # of all of them, not compressed
    share: float  # of the lines that was read
    batches: float  # in an epoch of the whole text

    def some(self) -> Iterator[Any]:
        """Batches of an epoch, of which training sees as many of each kind."""
        epoch = self.task.plan(0)
        for i in range(0, len(epoch), max(1, len(epoch) // LOOKED_AT)):
            yield self.task.batch(epoch[i])

    def hardest(self) -> Any:
        """The batch that needs the most memory."""
        return self.task.batch(self.task.hardest())


def missing(recipe: Recipe) -> list[str]:
    """Files that the recipe names and that are not there."""
    data = recipe.data
    return [
        str(data.root / name)
        for name in [*data.train, *(data.valid or [])]
        if not (data.root / name).is_file()
    ]


def open_texts(recipe: Recipe, origin: Run | None, folder: Path) -> Texts:
    """The task of a recipe over its text or a sample, in a folder of its own; a mistake in the files is a UserError.

    The tokenizer is that of ``origin``, or trained on what was read; with a sample it knows a little less than it will.
    """
    part: TaskPart = TASK.get(recipe.task.name)
    # what is measured at the end costs nothing before
    untested = recipe.data.model_copy(update={"test": None})
    part.check(recipe.model_copy(update={"data": untested}))
    names, lines, kept = _sampled(recipe, recipe.data.train, folder / "train")
    valid = _sampled(recipe, recipe.data.valid, folder / "valid")[0] if recipe.data.valid else None
    data = recipe.data.model_copy(
        update={"root": Path(), "train": names, "valid": valid, "test": None, "cache": folder / "data"}
    )
    small = recipe.model_copy(update={"data": data})
    kind, size, sentinels = recipe.tokenizer.kind, recipe.tokenizer.vocab_size, recipe.tokenizer.sentinels
    tokenizer = origin.tokenizer if origin else train_tokenizer(part.texts(small), kind, size, sentinels)
    task = part.open(small, tokenizer, Reporters())
    if recipe.distill:
        # the probe is on the CPU, wherever training will be
        task = distilled(task, small, open_teachers(recipe.distill, "cpu"), tokenizer)
    nbytes = sum(_size(recipe.data.root / name) for name in recipe.data.train)
    last = 0.5  # of a batch: how full the last one of an epoch is, on the mean
    batches = (len(task.plan(0)) - last) * lines / max(kept, 1) + last
    return Texts(task, tokenizer, lines, nbytes, kept / max(lines, 1), batches)


def _sampled(recipe: Recipe, names: list[str], folder: Path) -> tuple[list[str], int, int]:
    """The files, or blocks of their lines in files of the same names; lines of the first, and how many of them were taken."""
    paths = [(recipe.data.root / name).absolute() for name in names]
    every = -(-sum(map(_size, paths)) // MOST)
    lines = kept = 0
    made = []
    for number, path in enumerate(paths):
        to = folder / f"{number}-{path.name.removesuffix('.gz')}"
        if every > 1:
            folder.mkdir(parents=True, exist_ok=True)
        with _opened(path) as file:
            taken, seen = 0, 0
            out = to.open("wb") if every > 1 else None
            for seen, line in enumerate(file, 1):
                if (seen - 1) // BLOCK % every == 0:
                    taken += 1
                    if out:
                        out.write(line)
            if out:
                out.close()
        if number == 0:
            lines, kept = seen, taken
        made.append(str(to if every > 1 else path))
    return made, lines, kept


def _size(path: Path) -> int:
    """Bytes of a file, of a gzipped one as it was (its last four bytes say so, up to 4 GB)."""
    if path.suffix != ".gz":
        return path.stat().st_size
    with path.open("rb") as file:
        file.seek(-4, 2)
        return int(struct.unpack("<I", file.read(4))[0])


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
