"""The text of a recipe, or a sample of it where there is much, opened as training would open it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyhead import hub
from polyhead.data.columns import kind_of
from polyhead.data.comma import is_csv
from polyhead.data.files import opened
from polyhead.data_sections import DataConfig
from polyhead.planning.unseen import Tokens, open_with_classes, tokens_of_whole
from polyhead.recipe import Recipe
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.text.learn import train_tokenizer
from polyhead.train.distill import distilled, open_teachers
from polyhead.train.tasks.base import RunTask, TaskPart

MOST = 8 << 20  # bytes of a split that are read whole; of more, blocks of lines from all over
BLOCK = 500  # lines that stay together at most, so that documents mostly do
BLOCKS = 8  # of a file at least, where it has so many lines
LOOKED_AT = 24  # batches of an epoch that stand for all


class Texts(NamedTuple):
    """What was found out about the training text."""

    task: RunTask
    vocab_size: int  # that the model will have
    lines: int  # of all training files; of parallel ones those of one side
    nbytes: int  # of all of them, not compressed
    share: float  # of these bytes that was read
    batches: float  # in an epoch of the whole text
    notes: list[str]  # what is no more than likely

    def some(self) -> Iterator[Any]:
        """Batches of an epoch, of which training sees as many of each kind."""
        epoch = self.task.plan(0)
        for i in range(0, len(epoch), max(1, len(epoch) // LOOKED_AT)):
            yield self.task.batch(epoch[i])

    def hardest(self) -> Any:
        """The batch that needs the most memory."""
        return self.task.batch(self.task.hardest())


class Sample(NamedTuple):
    """The files of a split, or as many blocks of their lines in files of the same names as are enough."""

    names: list[str]
    lines: list[int]  # of each of them
    nbytes: int  # of all of them, not compressed
    kept: int  # of these bytes


def missing(recipe: Recipe) -> list[str]:
    """Files that the recipe names and that are not there."""
    data = recipe.data
    return [
        str(data.root / name)
        for name in [*data.train, *(data.valid or [])]
        if not name.startswith(hub.PREFIX) and not _there(data, name)
    ]


def _there(data: DataConfig, name: str) -> bool:
    return any(path.is_file() for path in data.local(name))


def open_texts(recipe: Recipe, origin: Run | None, folder: Path) -> Texts:
    """The task of a recipe over its text or a sample, in a folder of its own; a mistake in the files is a UserError.

    The tokenizer is that of ``origin``, or trained on what was read. With a sample it knows a little less than it will,
    and need not be that of a teacher who was trained on all; then it is the teacher's.
    """
    part: TaskPart = TASK.get(recipe.task.name)
    # what is measured at the end costs nothing before, and need not be there yet
    test = recipe.data.test if all(_there(recipe.data, name) for name in recipe.data.test or []) else None
    part.check(recipe.model_copy(update={"data": recipe.data.model_copy(update={"test": test})}))
    teachers = open_teachers(recipe.distill, "cpu")  # as the probe is, wherever training will be
    sample = _sampled(recipe.data.paths("train"), folder / "train")
    valid = _sampled(recipe.data.paths("valid"), folder / "valid").names if recipe.data.valid else None
    data = recipe.data.model_copy(
        update={"root": Path(), "train": sample.names, "valid": valid, "test": None, "cache": folder / "data"}
    )
    small = recipe.model_copy(update={"data": data})
    whole = sample.kept == sample.nbytes
    tokens = _tokens(part, small, origin, teachers, whole)
    task = open_with_classes(part, small, tokens.tokenizer, [] if whole else teachers)
    if recipe.distill:
        task = distilled(task, small, teachers, tokens.tokenizer)
    share, notes = sample.kept / sample.nbytes, []
    if not whole:
        notes.append(f"looked at {share:.1%} of the training text; tokens and batches are extrapolated")
    if recipe.distill and tokens.teacher is not None:
        notes.append(
            f"a sample does not tell the tokens of the whole text: those of {recipe.distill.teacher[tokens.teacher]} are assumed"
        )
    last = 0.5  # of a batch: how full the last one of an epoch is, on the mean
    batches = (len(task.plan(0)) - last) / share + last
    return Texts(task, tokens.vocab_size, _lines(recipe, sample), sample.nbytes, share, batches, notes)


def _lines(recipe: Recipe, sample: Sample) -> int:
    data = recipe.data
    table = data.format in ("tsv", "jsonl") or kind_of(data.paths("train")) is not None
    return sum(sample.lines) if table or recipe.task.name != "translation" else sample.lines[0]


def _tokens(
    part: TaskPart, recipe: Recipe, origin: Run | None, teachers: Sequence[Run], whole: bool
) -> Tokens:
    if origin:
        return Tokens(origin.tokenizer, max(origin.tokenizer.vocab_size, origin.config.vocab_size))
    asked = recipe.tokenizer
    trained = train_tokenizer(part.texts(recipe), asked.kind, asked.vocab_size, asked.sentinels)
    if whole:
        return Tokens(trained, trained.vocab_size)
    return tokens_of_whole(trained, asked, teachers)


def _sampled(paths: list[Path], folder: Path) -> Sample:
    """Of every file the same share, or files of many lines would count for too little beside those of few.

    Files of as many lines give the same ones, for parallel files belong together line by line; the first line, which may
    be a header, is always there.
    """
    paths = [path.absolute() for path in paths]
    counted = [_counted(path) for path in paths]
    lines, nbytes, kept = [there for there, _ in counted], sum(size for _, size in counted), 0
    every = -(-nbytes // MOST)
    if every <= 1:
        return Sample([str(path) for path in paths], lines, nbytes, nbytes)
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{number}-{_plain(path)}" for number, path in enumerate(paths)]
    for path, to, (there, _) in zip(paths, made, counted, strict=True):
        block = max(1, min(BLOCK, there // (every * BLOCKS)))
        with opened(path) as file, to.open("wb") as out:
            for number, line in enumerate(file):
                if number // block % every == 0:
                    kept += out.write(line)
    return Sample([str(to) for to in made], lines, nbytes, kept)


def _plain(path: Path) -> str:
    """The name of a file whose lines are read as they are."""
    return f"{path.name}.jsonl" if is_csv(path) else path.name.removesuffix(".gz")


def _counted(path: Path) -> tuple[int, int]:
    """Lines and bytes of a file, of a gzipped one as it was."""
    lines = nbytes = 0
    with opened(path) as file:
        for line in file:
            lines, nbytes = lines + 1, nbytes + len(line)
    return lines, nbytes
