"""Inputs of an estimate: a model, its training configuration, and batches.

The batches are those of the training text, or of a sample of a large one, opened as for training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from polyhead.config.corpora import CorpusConfig, as_corpora
from polyhead.config.data_config import DataConfig
from polyhead.config.model import PER_TOKEN, ModelConfig, get_problem_type
from polyhead.config.recipe import Recipe, TokenizerConfig, TrainConfig
from polyhead.core import hub
from polyhead.core.choice import Choice
from polyhead.core.errors import MAX_INT, UserError
from polyhead.core.i18n import tr
from polyhead.core.registry import TASK
from polyhead.cost.workload import BatchShape
from polyhead.data.readers.csv import is_csv
from polyhead.data.readers.files import open_lines
from polyhead.data.readers.tabular import infer_format
from polyhead.estimate.benchmark import RandomTokenTask
from polyhead.run.recipe_tokenizer import make_tokenizer
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.distill import (
    DistillationTask,
    DistillBatch,
    Teacher,
    check_widths,
    load_teachers,
    make_distillation_task,
)
from polyhead.train.loggers import Reporters
from polyhead.train.loop import updates_of_epochs
from polyhead.train.loss_module import LossTask
from polyhead.train.tasks.base import HasClasses, Task, TaskFactory
from polyhead.train.tasks.common import count_causal_lm_labels
from polyhead.train.tasks.preferences import PreferenceBatch


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
    source_size: int  # of its encoder, if sources have their own vocabulary; else 0
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
        for name in [*data.list_files("train"), *data.list_files("valid")]
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
    test_files = recipe.data.list_files("test")
    test = recipe.data.test if all(_exists(recipe.data, name) for name in test_files) else None
    part.check(recipe.model_copy(update={"data": recipe.data.model_copy(update={"test": test})}))
    teachers = load_teachers(recipe.distill, "cpu")  # as in the benchmark, regardless of the training device
    sample = _sample_files(recipe.data.split_paths("train"), folder / "train")
    valid = _sample_files(recipe.data.split_paths("valid"), folder / "valid") if recipe.data.valid else None
    data = recipe.data.model_copy(
        update={
            "root": Path(),
            "train": _name_sample(recipe.data, "train", sample),
            "valid": valid and _name_sample(recipe.data, "valid", valid),
            "test": None,
            "alignments": None,
            "cache_dir": folder / "data",
        }
    )
    small = recipe.model_copy(update={"data": data})
    is_complete = sample.sampled_bytes == sample.nbytes
    tokens = _resolve_tokenizer(part, small, origin, teachers, is_complete)
    task: Task
    labels = None  # of the first teacher that knows all classes of a sample
    if isinstance(part, HasClasses) and teachers and not is_complete:
        classes = set(part.read_classes(small))
        known = (teacher.config.labels for teacher in teachers)
        labels = next((names for names in known if classes <= set(names)), None)
    if isinstance(part, HasClasses) and labels is not None:
        task = part.open_with_labels(labels, small, tokens.tokenizer, Reporters())
    else:
        task = part.open(small, tokens.tokenizer, Reporters())
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
    for row in task.shares:
        row = row._replace(texts=round(row.texts / share), used=round(row.used / share))
        notes.append(tr("corpus {name}: {share}", name=row.name, share=row.describe()))
    last = 0.5  # mean fill of the last batch of an epoch
    batches = (len(task.epoch_batches(0)) - last) / share + last
    is_table = recipe.data.format in ("tsv", "jsonl")
    is_table = is_table or infer_format(recipe.data.split_paths("train")) is not None
    is_parallel = recipe.task.name == "translation" and not is_table
    lines = sample.lines[0] if is_parallel else sum(sample.lines)
    if is_parallel and recipe.data.list_corpora("train"):
        lines = sum(sample.lines) // 2
    sizes = tokens.vocab_size, tokens.tokenizer.source_size
    return DataSample(task, *sizes, lines, sample.nbytes, share, batches, notes)


def _resolve_tokenizer(
    part: TaskFactory, recipe: Recipe, origin: Run | None, teachers: Sequence[Run], is_complete: bool
) -> RunTokenizer:
    tokenizer_config = recipe.tokenizer
    tokenizer = make_tokenizer(recipe, lambda: part.iter_texts(recipe), origin.tokenizer if origin else None)
    if origin or is_complete or tokenizer_config.file:
        of_target, n_rows = tokenizer.target_tokenizer, origin.config.vocab_size if origin else 0
        return RunTokenizer(tokenizer, max(of_target.vocab_size, of_target.max_id + 1, n_rows))
    return extrapolate_tokenizer(tokenizer, tokenizer_config, teachers)


def _name_sample(data: DataConfig, split: str, sample: SplitSample) -> list[str] | list[CorpusConfig]:
    """The files of a sample, as the recipe names those of a split."""
    names, corpora = iter(sample.names), []
    for corpus in as_corpora(getattr(data, split)):
        files = [*islice(names, len(data.split_paths(split, corpus)))]
        most = corpus.max_texts and math.ceil(corpus.max_texts * sample.sampled_bytes / sample.nbytes)
        corpora.append(corpus.model_copy(update={"files": files, "max_texts": most}))
    return corpora or sample.names


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
    # named so that their lines are read unchanged
    names = [f"{path.name}.jsonl" if is_csv(path) else path.name.removesuffix(".gz") for path in paths]
    sample_paths = [folder / f"{number}-{name}" for number, name in enumerate(names)]
    for path, to, (n_lines, _) in zip(paths, sample_paths, sizes, strict=True):
        block = max(1, min(_MAX_BLOCK_LINES, n_lines // (sampling_step * _MIN_BLOCKS)))
        with open_lines(path) as file, to.open("wb") as out:
            for number, line in enumerate(file):
                if number // block % sampling_step == 0:
                    sampled_bytes += out.write(line)
    return SplitSample([str(to) for to in sample_paths], lines, nbytes, sampled_bytes)


def _count_lines_and_bytes(path: Path) -> tuple[int, int]:
    """Lines and bytes of a file, uncompressed."""
    lines = nbytes = 0
    with open_lines(path) as file:
        for line in file:
            lines, nbytes = lines + 1, nbytes + len(line)
    return lines, nbytes


_MAX_RANDOM_TOKENS = 1 << 24  # maximum tokens of a random batch


class EstimateInputs(NamedTuple):
    """A model, its training configuration, and representative batches."""

    name: str
    config: ModelConfig
    train: TrainConfig
    largest_batch: BatchShape
    sample_batches: list[tuple[BatchShape, int, Any]]  # (shape, number of labels, batch)
    task: LossTask
    batches: float | None  # in an epoch
    steps: int | None
    cache: Choice | None
    context: int
    text: dict[str, float]  # size of the training text; empty if unknown
    notes: list[str]  # assumptions; later steps append to it
    task_name: str = ""  # "" without a recipe
    exports: Mapping[str, str] = {}  # the obstacle to each export format; "" if there is none

    @property
    def batch_shapes(self) -> list[BatchShape]:
        """Shapes of the representative batches."""
        return [load for load, _, _ in self.sample_batches] or [self.largest_batch]

    @property
    def teachers(self) -> list[Teacher]:
        """The teachers of distillation."""
        return list(self.task.teachers) if isinstance(self.task, DistillationTask) else []

    @property
    def mean_batch(self) -> BatchShape:
        """A batch of mean size, rounded."""
        numbers = zip(
            *((load.rows, load.length, load.source, load.labels) for load in self.batch_shapes), strict=True
        )
        return BatchShape(*(round(sum(column) / len(self.batch_shapes)) for column in numbers))

    @property
    def labels(self) -> float:
        """Labels of a mean optimizer step."""
        counts = [count for _, count, _ in self.sample_batches] or [self.largest_batch.labels]
        return self.train.accumulate * sum(counts) / len(counts)


def model_inputs(
    config: ModelConfig, batch_size: int | None, seq_len: int | None, train_tokens: float | None
) -> EstimateInputs:
    """Inputs of a model without a recipe: by default one row of maximum length; AdamW."""
    batch_size, seq_len = batch_size or 1, seq_len or config.max_len
    if seq_len > config.max_len:
        raise UserError(f"seq_len is {seq_len}, more than max_len ({config.max_len}) of the model")
    if batch_size * seq_len > MAX_INT:
        raise UserError(f"batch_size x seq_len is {batch_size * seq_len:,}; expected at most {MAX_INT:,}")
    load = BatchShape(batch_size, seq_len, seq_len if config.kind == "encoder-decoder" else 0)
    if config.kind == "encoder":
        load = load._replace(
            label_count=batch_size if config.labels else max(1, round(0.15 * batch_size * seq_len))
        )
    train = TrainConfig.model_validate({"steps": 1, "max_tokens": batch_size * seq_len})
    steps = math.ceil(train_tokens / (batch_size * seq_len)) if train_tokens else None
    return _random_inputs(f"{config.kind} model", config, train, load, steps, None, config.max_len, [])


def inputs_without_data(recipe: Recipe, origin: Run | None, missing_files: list[str]) -> EstimateInputs:
    """Inputs of a recipe with missing files: every row has the maximum length."""
    notes = [
        f"{', '.join(missing_files)}: not found; batches are assumed to have the maximum size, and "
        "epochs are unknown"
    ]
    vocab_size = recipe.tokenizer.vocab_size
    labels: tuple[str, ...] = ()
    if origin:
        vocab_size, labels = origin.config.vocab_size, origin.config.labels
    elif recipe.tokenizer.kind.name in ("char", "byte"):
        notes.append(
            f"the vocabulary size of a tokenizer of kind {recipe.tokenizer.kind.name!r} is unknown "
            "without the text"
        )
    part = TASK.get(recipe.task.name)
    if get_problem_type(part) == "regression":
        labels = labels or ("number",)
    if isinstance(part, HasClasses) and not labels:
        notes.append("the classes are unknown without the text: 2 are assumed")
        labels = ("0", "1")
    config = recipe.model.with_vocabulary(
        vocab_size, labels if isinstance(part, HasClasses) else (), get_problem_type(part)
    )
    length = min(recipe.data.max_len, config.max_len)
    rows = max(1, recipe.train.max_tokens // length)
    load = BatchShape(rows, length, length if config.kind == "encoder-decoder" else 0)
    if config.labels and config.problem_type not in PER_TOKEN:
        load = load._replace(label_count=rows)
    elif mask := recipe.task.options.get("mask"):
        load = load._replace(label_count=max(1, round(mask * rows * length)))
    if recipe.distill:
        notes.append("the cost of the teachers is unknown without the text")
    return _random_inputs(
        recipe.out.name,
        config,
        recipe.train,
        load,
        count_updates(recipe.train, None),
        recipe.generation.cache,
        length,
        notes,
    )


def count_updates(train: TrainConfig, batches: float | None) -> int | None:
    """The number of optimizer steps, by the first limit that is reached; None if unknown."""
    limits = [train.steps] if train.steps else []
    if train.epochs and batches:
        limits.append(updates_of_epochs(train.epochs, batches, train.accumulate))
    return min(limits) if limits and (batches or not train.epochs) else None


def _random_inputs(
    name: str,
    config: ModelConfig,
    train: TrainConfig,
    batch_shape: BatchShape,
    steps: int | None,
    cache: Choice | None,
    context: int,
    notes: list[str],
) -> EstimateInputs:
    """Inputs with random tokens."""
    task = RandomTokenTask(config, batch_shape)
    fits = batch_shape.tokens * max(1, train.accumulate) < _MAX_RANDOM_TOKENS
    samples = [(batch_shape, task.count_labels(None), task.collate(None))] if fits else []
    return EstimateInputs(
        name, config, train, batch_shape, samples, task, None, steps, cache, context, {}, notes
    )


def inputs_with_data(recipe: Recipe, sample: DataSample) -> EstimateInputs:
    """Inputs of a recipe with its text: batches as in training."""
    config = recipe.model.with_vocabulary(
        sample.vocab_size, sample.task.labels, get_problem_type(sample.task), sample.source_size
    )
    if isinstance(sample.task, DistillationTask):
        check_widths(sample.task, config.d_model)
    samples = [
        (batch_shape_of(config, sample.task, batch), sample.task.count_labels(batch), batch)
        for batch in sample.sample_batches()
    ]
    largest = batch_shape_of(config, sample.task, sample.largest_batch())
    context = min(recipe.data.max_len, config.max_len)
    return EstimateInputs(
        recipe.out.name,
        config,
        recipe.train,
        largest,
        samples,
        sample.task,
        sample.batches,
        count_updates(recipe.train, sample.batches),
        recipe.generation.cache,
        context,
        {"lines": sample.lines, "bytes": sample.nbytes, "looked_at": round(sample.sampled_fraction, 4)},
        sample.notes,
    )


def batch_shape_of(config: ModelConfig, task: LossTask, batch: Any) -> BatchShape:
    """The shape of a batch of a task for a model; of a distillation batch, that of the student."""
    label_count = task.count_labels(batch)
    if isinstance(batch, DistillBatch):
        batch = batch.student
    if isinstance(batch, PreferenceBatch):
        batch = batch.answers[0].windows
        label_count = count_causal_lm_labels(batch)
    if config.kind == "encoder-decoder":
        rows, length = batch.target.shape
        return BatchShape(rows, length, batch.source.size(1), label_count)
    inputs = getattr(batch, "masked", getattr(batch, "inputs", batch))
    rows, length = inputs.tokens.shape
    return BatchShape(rows, length, 0, label_count)
