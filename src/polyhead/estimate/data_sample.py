"""The training text of a recipe, or a sample of a large one, opened in the same way as for training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.config.data_config import DataConfig, TokenizerConfig
from polyhead.config.recipe import Recipe
from polyhead.core import hub
from polyhead.core.registry import TASK
from polyhead.data.readers.csv import is_csv
from polyhead.data.readers.files import open_lines
from polyhead.data.readers.tabular import infer_format
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.train.distill import load_teachers, make_distillation_task
from polyhead.train.loggers import Reporters
from polyhead.train.tasks.base import HasClasses, Task, TaskFactory


class RunTokenizer(NamedTuple):
    """The tokenizer of a run, and the vocabulary size of its model."""

    tokenizer: Tokenizer
    vocab_size: int
    # index of the teacher whose tokenizer is assumed; None without an assumption
    teacher_index: int | None = None


def extrapolate_tokenizer(
    tokenizer: Tokenizer, config: TokenizerConfig, teachers: Sequence[Run]
) -> RunTokenizer:
    """Extrapolate a tokenizer trained on a sample to the complete text.

    It is the tokenizer of the first teacher that training on the complete text could give: one of the same
    kind, with at least as many tokens, and at most the configured vocabulary size. Without such a teacher it
    is the trained one with the configured vocabulary size; for bytes and characters, with its own, because a
    sample contains nearly all of them.
    """
    max_vocab_size = max(config.vocab_size, tokenizer.vocab_size)
    for number, teacher in enumerate(teachers):
        candidate = teacher.tokenizer
        if tokenizer.vocab_size <= candidate.vocab_size <= max_vocab_size and _tokenizer_rules(
            candidate
        ) == _tokenizer_rules(tokenizer):
            is_same = candidate.sha256 == tokenizer.sha256
            return RunTokenizer(candidate, candidate.vocab_size, None if is_same else number)
    return RunTokenizer(
        tokenizer, tokenizer.vocab_size if config.kind.name in ("byte", "char") else max_vocab_size
    )


def open_with_classes(
    part: TaskFactory, recipe: Recipe, tokenizer: Tokenizer, teachers: Sequence[Run]
) -> Task:
    """Open the task, with the classes of the first teacher that knows all classes of the text."""
    if isinstance(part, HasClasses) and teachers:
        classes = set(part.read_classes(recipe))
        for teacher in teachers:
            if classes <= set(teacher.config.labels):
                return part.open_with_labels(teacher.config.labels, recipe, tokenizer, Reporters())
    return part.open(recipe, tokenizer, Reporters())


def _tokenizer_rules(tokenizer: Tokenizer) -> dict[str, Any]:
    """The rules of a tokenizer without its trained vocabulary and merges."""
    rules: dict[str, Any] = json.loads(tokenizer.tokenizer_json)
    model = {name: value for name, value in rules["model"].items() if name not in ("vocab", "merges")}
    return rules | {"model": model, "added_tokens": [token["content"] for token in rules["added_tokens"]]}


_MAX_SPLIT_BYTES = 8 << 20  # bytes up to which a split is read completely; above, blocks of lines are sampled
_MAX_BLOCK_LINES = 500  # maximum lines per block; large blocks keep most documents intact
_MIN_BLOCKS = 8  # minimum blocks per file, if it has enough lines
_SAMPLED_BATCHES = 24  # batches that represent an epoch


class DataSample(NamedTuple):
    """The task of a recipe over a sample of its training text, and the size of the text."""

    task: Task
    vocab_size: int  # of the model
    lines: int  # of all training files; of one side for parallel files
    nbytes: int  # of all training files, uncompressed
    sampled_fraction: float  # fraction of these bytes that was read
    batches: float  # in an epoch of the complete text
    notes: list[str]  # assumptions

    def sample_batches(self) -> Iterator[Any]:
        """Yield batches of an epoch at equal distances, so that each kind has its share."""
        epoch = self.task.epoch_batches(0)
        for i in range(0, len(epoch), max(1, len(epoch) // _SAMPLED_BATCHES)):
            yield self.task.collate(epoch[i])

    def largest_batch(self) -> Any:
        """The batch that needs the most memory."""
        return self.task.collate(self.task.largest_batch())


class SplitSample(NamedTuple):
    """The files of a split, or files of the same names with blocks of their lines."""

    names: list[str]
    lines: list[int]  # of each original file
    nbytes: int  # of all original files, uncompressed
    sampled_bytes: int  # of the sample


def find_missing_files(recipe: Recipe) -> list[str]:
    """Training and validation files of the recipe that do not exist."""
    data = recipe.data
    return [
        str(data.root / name)
        for name in [*data.train, *(data.valid or [])]
        if not name.startswith(hub.HUB_PREFIX) and not _exists(data, name)
    ]


def _exists(data: DataConfig, name: str) -> bool:
    return any(path.is_file() for path in data.find_local_files(name))


def open_data_sample(recipe: Recipe, origin: Run | None, folder: Path) -> DataSample:
    """Open the task of a recipe over its text, or over a sample in ``folder``.

    A mistake in the files is a UserError. The tokenizer is that of ``origin``, or trained on the text that
    was read. From a sample it lacks some tokens and may differ from that of a teacher trained on the complete
    text; then that of the teacher is used.
    """
    part: TaskFactory = TASK.get(recipe.task.name)
    # test files are used only after training and may not exist yet
    test = recipe.data.test if all(_exists(recipe.data, name) for name in recipe.data.test or []) else None
    part.check(recipe.model_copy(update={"data": recipe.data.model_copy(update={"test": test})}))
    teachers = load_teachers(recipe.distill, "cpu")  # as in the benchmark, regardless of the training device
    sample = _sample_files(recipe.data.split_paths("train"), folder / "train")
    valid = (
        _sample_files(recipe.data.split_paths("valid"), folder / "valid").names if recipe.data.valid else None
    )
    data = recipe.data.model_copy(
        update={
            "root": Path(),
            "train": sample.names,
            "valid": valid,
            "test": None,
            "cache_dir": folder / "data",
        }
    )
    small = recipe.model_copy(update={"data": data})
    is_complete = sample.sampled_bytes == sample.nbytes
    tokens = _resolve_tokenizer(part, small, origin, teachers, is_complete)
    task = open_with_classes(part, small, tokens.tokenizer, [] if is_complete else teachers)
    if recipe.distill:
        task = make_distillation_task(task, small, teachers, tokens.tokenizer)
    share, notes = sample.sampled_bytes / sample.nbytes, []
    if not is_complete:
        notes.append(f"sampled {share:.1%} of the training text; tokens and batches are extrapolated")
    if recipe.distill and tokens.teacher_index is not None:
        notes.append(
            "a sample does not give the vocabulary of the whole text: that of "
            f"{recipe.distill.teacher[tokens.teacher_index]} is assumed"
        )
    last = 0.5  # mean fill of the last batch of an epoch
    batches = (len(task.epoch_batches(0)) - last) / share + last
    return DataSample(
        task, tokens.vocab_size, _count_lines(recipe, sample), sample.nbytes, share, batches, notes
    )


def _count_lines(recipe: Recipe, sample: SplitSample) -> int:
    data = recipe.data
    table = data.format in ("tsv", "jsonl") or infer_format(data.split_paths("train")) is not None
    return sum(sample.lines) if table or recipe.task.name != "translation" else sample.lines[0]


def _resolve_tokenizer(
    part: TaskFactory, recipe: Recipe, origin: Run | None, teachers: Sequence[Run], is_complete: bool
) -> RunTokenizer:
    if origin:
        return RunTokenizer(origin.tokenizer, max(origin.tokenizer.vocab_size, origin.config.vocab_size))
    tokenizer_config = recipe.tokenizer
    tokenizer = train_tokenizer(
        part.iter_texts(recipe),
        tokenizer_config.kind,
        tokenizer_config.vocab_size,
        tokenizer_config.sentinels,
    )
    if is_complete:
        return RunTokenizer(tokenizer, tokenizer.vocab_size)
    return extrapolate_tokenizer(tokenizer, tokenizer_config, teachers)


def _sample_files(paths: list[Path], folder: Path) -> SplitSample:
    """Sample the same fraction of every file, so that each file has its share.

    Files with equal numbers of lines get the same line numbers, because parallel files are aligned line by
    line. The first line, which may be a header, is always included.
    """
    paths = [path.absolute() for path in paths]
    sizes = [_count_lines_and_bytes(path) for path in paths]
    lines, nbytes, sampled_bytes = [n_lines for n_lines, _ in sizes], sum(size for _, size in sizes), 0
    sampling_step = -(-nbytes // _MAX_SPLIT_BYTES)
    if sampling_step <= 1:
        return SplitSample([str(path) for path in paths], lines, nbytes, nbytes)
    folder.mkdir(parents=True, exist_ok=True)
    sample_paths = [folder / f"{number}-{_sample_name(path)}" for number, path in enumerate(paths)]
    for path, to, (n_lines, _) in zip(paths, sample_paths, sizes, strict=True):
        block = max(1, min(_MAX_BLOCK_LINES, n_lines // (sampling_step * _MIN_BLOCKS)))
        with open_lines(path) as file, to.open("wb") as out:
            for number, line in enumerate(file):
                if number // block % sampling_step == 0:
                    sampled_bytes += out.write(line)
    return SplitSample([str(to) for to in sample_paths], lines, nbytes, sampled_bytes)


def _sample_name(path: Path) -> str:
    """The name of a sample file, chosen so that its lines are read unchanged."""
    return f"{path.name}.jsonl" if is_csv(path) else path.name.removesuffix(".gz")


def _count_lines_and_bytes(path: Path) -> tuple[int, int]:
    """Lines and bytes of a file, uncompressed."""
    lines = nbytes = 0
    with open_lines(path) as file:
        for line in file:
            lines, nbytes = lines + 1, nbytes + len(line)
    return lines, nbytes
