"""Run a training recipe: tokenizer, data, model, training, evaluation, run directory."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyhead.checkpoint import checkpoint
from polyhead.config.model import ModelConfig, get_problem_type
from polyhead.config.recipe import Recipe, TrainConfig
from polyhead.core.atomic_io import replace_file
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_fact, translate_message
from polyhead.core.progress import every_few_seconds
from polyhead.core.registry import TASK
from polyhead.evaluate.run_facts import describe_final_scores
from polyhead.export.targets import describe_targets, find_obstacles
from polyhead.kernels.malloc_tuning import tune_malloc
from polyhead.models import Model, build
from polyhead.nn.device import resolve_device
from polyhead.nn.lora import merge_lora
from polyhead.run.recipe_tokenizer import make_tokenizer
from polyhead.run.run import Run
from polyhead.run.run_directory import read_run_config, write_run_manifest
from polyhead.tokenizers.extend_tokenizer import find_new_tokens
from polyhead.tokenizers.scripts import DecomposedCounter
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.train.baselines import add_baselines, save_training_counts
from polyhead.train.disk_space import check_disk_space
from polyhead.train.distill import check_widths, load_teachers, make_distillation_task, without_teacher
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.distributed.rank_sync import (
    broadcast_checkpoint,
    broadcast_tokenizer,
    check_ranks_agree,
    share_checkpoint,
)
from polyhead.train.init_from import check_parts, inherit_settings, load_init_from, load_init_weights
from polyhead.train.lock import RunLock
from polyhead.train.loggers import (
    EtaReporter,
    Reporter,
    Reporters,
    import_loggers,
    make_terminal_reporter,
    open_loggers,
)
from polyhead.train.loop import (
    OnEvaluation,
    OnMark,
    Outcome,
    TrainStatus,
    measure_metric,
    total_steps,
    train_model,
)
from polyhead.train.loss_module import MapFn
from polyhead.train.precision import (
    ResolvedPrecision,
    autocast,
    choose_precision,
    compile_model,
    is_measured,
    resolve_precision,
    use_tf32,
)
from polyhead.train.reference import read_reference, refuse_new_reference, set_references, write_reference
from polyhead.train.report import RunReport
from polyhead.train.resume import check_directory, check_rates, check_same_data, is_started
from polyhead.train.schedule import warn_factor, warn_long_warmup
from polyhead.train.signals import interrupt_on_signal, stop_on_signal
from polyhead.train.strategies.base import Strategy
from polyhead.train.strategies.parallelize import check_parallel, parallelize
from polyhead.train.tasks.base import Task, TaskFactory
from polyhead.train.tasks.classification import LabeledTextTask
from polyhead.train.tasks.corpora import corpus_facts, format_shares
from polyhead.train.tasks.preferences import PreferenceTask
from polyhead.train.train_state import TrainState, load_final_weights
from polyhead.train.trainable_parameters import parameter_summary, quantize_base
from polyhead.train.validation_examples import LearningMarks, save_validation_examples
from polyhead.viz.run_record import format_seconds, read_metrics

Evaluator = Callable[[Run, Any], dict[str, str]]
"""Evaluates the final weights of a run; returns facts for its README.md."""


def run_training(
    recipe: Recipe,
    *,
    resume: bool = False,
    report: Reporter | None = None,
    tokenizer: Tokenizer | None = None,
    evaluator: Evaluator | None = None,
    ranks: ProcessGroup = SINGLE_PROCESS,
) -> tuple[Run, Outcome]:
    """Run a training recipe; with ``resume``, continue an interrupted run as if it had not been interrupted.

    If there is no run yet, ``resume`` starts one, so a job scheduler can restart with the same call.
    A lock on the directory keeps a second process out; on Ctrl-C and SIGTERM the run is saved and ends. If a
    ``tokenizer`` is passed, none is trained; ``evaluator`` replaces the final evaluation of the task. Of
    several ``ranks`` (``polyhead.train.distributed.torch_process_group.init_process_group``), only rank 0
    uses the directory; all return the evaluated weights.
    """
    session = TrainingSession(recipe, resume, evaluator, ranks)
    session.prepare()
    with session.open_directory(report):
        session.open(tokenizer)
        session.restore()
        session.announce()
        outcome = session.train()
        session.finish(outcome)
        return session.run, outcome


class TrainingSession:
    """The steps of ``run_training``, in their order; every rank makes all of them."""

    def __init__(
        self, recipe: Recipe, resume: bool, evaluator: Evaluator | None, ranks: ProcessGroup
    ) -> None:
        self.recipe, self.evaluator, self.ranks = recipe, evaluator, ranks
        self.out, self.checkpoints = recipe.out, recipe.out / "checkpoints"
        self.is_rank0, self.is_resume_requested = not ranks.rank, resume

    def prepare(self) -> None:
        """Complete the recipe and check it, its files and its parts, before anything is written."""
        recipe, ranks, out = self.recipe, self.ranks, self.out
        self.device = resolve_device(recipe.train.device)
        ranks.form_mesh(recipe.train.parallel, self.device.type)
        tune_malloc(reuse=not ranks.place.shape.partitions_model)
        ranks.use_threads(recipe.train.threads)
        self.resume = resume = ranks.on_rank0(lambda: self.is_resume_requested and is_started(out))
        if self.is_resume_requested and not resume:  # recipes are read leniently for --resume
            recipe.generation.check_effective(recipe.model.kind)
        has_checkpoint = ranks.on_rank0(lambda: resume and bool(checkpoint.list_steps(self.checkpoints)))
        self.origin = origin = ranks.rank0_first(lambda: load_init_from(recipe, has_checkpoint))
        self.recipe = recipe = inherit_settings(recipe, origin)
        self.teachers = ranks.rank0_first(lambda: load_teachers(recipe.distill, str(self.device)))
        self.old_recipe = check_directory(recipe, resume) if self.is_rank0 else None
        self.factory: TaskFactory = TASK.get(recipe.task.name)
        ranks.rank0_first(lambda: self.factory.check(recipe))
        if not resume:
            check_parts(recipe, origin)

    @contextmanager
    def open_directory(self, terminal: Reporter | None) -> Iterator[None]:
        """Lock the directory, and read its newest checkpoint and its report."""
        if self.is_rank0:
            import_loggers(self.recipe.train)
        with RunLock(self.out) if self.is_rank0 else nullcontext():
            self.saved_checkpoint = _share_newest_checkpoint(self.checkpoints, self.resume, self.ranks)
            self.done_steps = done_steps = self.saved_checkpoint.step if self.saved_checkpoint else 0
            self.page = RunReport(self.out, is_resumed=bool(done_steps)) if self.is_rank0 else None
            terminals = [terminal or make_terminal_reporter()] if self.is_rank0 else []
            with Reporters(*terminals) as self.reporters, self.page or nullcontext():
                rows = read_metrics(self.out / "metrics.jsonl") if self.is_rank0 and done_steps else ()
                past_rows = [row for row in rows if row["step"] <= done_steps]
                self.reporter = EtaReporter(self.reporters, past_rows, done_steps)
                yield

    def open(self, tokenizer: Tokenizer | None) -> None:
        """Open the tokenizer, the task with its text, and the model with its first weights."""
        recipe, origin, resume, ranks = self.recipe, self.origin, self.resume, self.ranks
        old = origin.tokenizer if origin else None
        if old and not resume and recipe.tokenizer.extend is None:
            tokenizer = old
        elif tokenizer is None or resume:
            tokenizer = broadcast_tokenizer(
                ranks, lambda: _load_or_train_tokenizer(recipe, self.factory, resume, self.reporter, old)
            )
        min_vocab_size, family = ranks.on_rank0(
            lambda: _pretrained_info(self.out if resume else None, origin)
        )
        self.task, self.config = ranks.rank0_first(
            lambda: _open_task(recipe, tokenizer, min_vocab_size, self.teachers, self.reporter)
        )
        check_parallel(recipe, self.config, ranks.place.shape)
        self.run = Run(self.build_model(), tokenizer, recipe.generation, recipe)
        self.run.family = family
        if recipe.init_from and not self.saved_checkpoint:
            # if it was not loaded before, no checkpoint was complete
            init_run = origin or ranks.rank0_first(lambda: load_init_from(recipe))
            assert init_run is not None
            stride, lora = recipe.init_from.layer_stride, recipe.train.lora
            new_tokens = find_new_tokens(init_run.tokenizer, tokenizer) if recipe.tokenizer.extend else {}
            self.reporter.info(load_init_weights(self.run.model, init_run, stride, lora, new_tokens))
            self.origin = None
            del init_run, origin  # their memory is needed
        if recipe.train.lora:  # the reference is the packed model, too
            quantize_base(self.run.model, recipe.train.lora)
        if isinstance(self.task, PreferenceTask):
            self.open_reference(self.task)

    def open_reference(self, task: PreferenceTask) -> None:
        """Set the reference log-probabilities: of the first weights, or those that a resumed run has."""
        run, ranks, saved = self.run, self.ranks, bool(self.saved_checkpoint)
        precision = resolve_precision(self.recipe.train.precision, self.device)
        known = ranks.on_rank0(lambda: read_reference(self.out) if saved else {})
        with autocast(precision, self.device):
            load_model = refuse_new_reference if saved else lambda: run.model
            references = set_references(task, known, load_model, _report_progress(ranks, self.reporter))
        ranks.on_rank0(lambda: write_reference(self.out, references))

    def build_model(self) -> Model:
        return build(self.config, self.recipe.train.seed).to(self.device)

    def restore(self) -> None:
        """Prepare the model, its optimizers and its strategy, and load the checkpoint, if there is one."""
        train, model, d_model = self.recipe.train, self.run.model, self.config.d_model
        self.steps = steps = total_steps(self.task, train)
        precision = self.choose_precision(model)
        self.training = TrainState(model, train.model_copy(update={"precision": precision}), d_model, steps)
        self.extra = {"tokenizer_sha256": self.run.tokenizer.sha256, **self.task.identity}
        check_ranks_agree(self.ranks, self.recipe, model, self.extra)
        use_tf32(train.precision, self.device)
        if train.recompute == "none" and self.recipe.data.alignments is None:
            compile_model(model, train.compile, self.device)
        self.summary = parameter_summary(model)
        self.strategy = parallelize(self.training, self.task, train, self.ranks)
        if saved := self.saved_checkpoint:
            if self.old_recipe:
                check_same_data(saved, self.extra, self.old_recipe, self.recipe)
                old_steps = total_steps(self.task, self.old_recipe.train)
                check_rates(train, d_model, saved.step, old_steps, steps)
            self.training.restore(saved)
            self.reporter.info(tr("resumed at step {step} of {steps}", step=saved.step, steps=steps))
        elif self.is_resume_requested:
            self.reporter.info(tr("{out} has no checkpoint to resume from: starting at step 1", out=self.out))

    def choose_precision(self, model: Model) -> ResolvedPrecision:
        """That of the checkpoint, else of the recipe; rank 0 measures ``auto`` on a processor."""
        train = self.recipe.train
        state = self.saved_checkpoint.state if self.saved_checkpoint else {}
        if "precision" in state:
            kept: ResolvedPrecision = state["precision"]
            return kept
        arguments = train.precision, self.device, model, train.max_tokens
        name: ResolvedPrecision = self.ranks.on_rank0(lambda: choose_precision(*arguments))
        if is_measured(train.precision, self.device):
            line = "train.precision: auto is {name}, the faster one in products of this model with {n} tokens"
            self.reporter.info(tr(line, name=name, n=train.max_tokens))
        return name

    def announce(self) -> None:
        """Check the disk, open the logs, write the settings of the run, and report what is trained."""
        recipe, out, ranks, report, run = self.recipe, self.out, self.ranks, self.reporter, self.run
        ranks.on_rank0(lambda: check_disk_space(out, self.training, self.config, recipe.train, self.steps))
        if recipe.train.parallel.checkpoint == "sharded":
            from polyhead.train.distributed.sharded_checkpoint import check_shared_directory  # slow to import

            check_shared_directory(out, ranks)
        if self.is_rank0:
            self.reporters.reporters += open_loggers(recipe, self.done_steps, report.info)
            run.save_config_files(out)
            write_run_manifest(out)
        size = {"size": self.summary, "steps": self.steps, "out": out}
        report.info(
            tr("{size}, {steps:,} steps on {n} processes, to {out}", n=ranks.world_size, **size)
            if ranks.world_size > 1
            else tr("{size}, {steps:,} steps, to {out}", **size)
        )
        if self.is_rank0:
            report.info(describe_targets(find_obstacles(self.config, run.tokenizer, run.family)))
        _warn_schedule(recipe.train, self.steps, report)
        if self.page:
            self.page.start(run, self.task, report.info)

    def train(self) -> Outcome:
        """Train, and evaluate the final weights; a signal ends both."""
        report, page, train, run = self.reporter, self.page, self.recipe.train, self.run
        with stop_on_signal(report.info) as should_stop, self.ranks.translate_errors():
            # samples need the whole model
            on_evaluation: OnEvaluation = (
                page.update if page and self.strategy.has_full_model else lambda row: None
            )
            has_marks = train.explain_every and self.is_rank0 and self.strategy.has_full_model
            marks = LearningMarks(run, self.recipe, self.done_steps, report.info) if has_marks else None
            on_mark: OnMark = marks.take if marks else lambda step: None
            outcome = train_model(
                self.training, self.strategy, train, self.checkpoints, report, should_stop, self.extra,
                on_evaluation, on_mark,
            )  # fmt: skip
            if outcome.status != "interrupted":
                if not self.strategy.has_full_model:
                    run.replace_model(self.build_model())
                    self.strategy = self.strategy.gather(run.model)
                outcome.status = _evaluate_final_weights(
                    run, self.task, outcome, self.training, self.strategy, report, self.evaluator
                )
        return outcome

    def finish(self, outcome: Outcome) -> None:
        """Report where the run is, and how to continue one that was interrupted."""
        if outcome.status == "interrupted":
            recipe_path, options = str(self.out / "recipe.yaml"), self.ranks.relaunch_options
            command = shlex.join(["polyhead", "train", recipe_path, "--resume", *options])
            saved_at = tr("saved at step {step}", step=outcome.step)
            # callers with an evaluator of their own have their own way to resume
            self.reporter.info(
                saved_at
                if self.evaluator
                else tr("{saved}; continue with: {command}", saved=saved_at, command=command)
            )
        self.run.model.eval()
        if self.page:
            self.page.finish(outcome.status)
            line = tr("report: {path}", path=self.page.path)
            if outcome.status != "interrupted":  # replace ".", the run directory, by its path
                command = re.sub(r"(?<=[ =])\.(?= |$)", lambda _: shlex.quote(str(self.out)), self.task.usage)
                line = tr("{line}; next: {command}", line=line, command=command)
            self.reporter.info(line)


def _share_newest_checkpoint(
    checkpoints: Path, resume: bool, ranks: ProcessGroup
) -> checkpoint.Checkpoint | None:
    """The newest checkpoint, read by rank 0; one tensor at a time if no rank has room for the whole model."""
    partitions_model = ranks.place.shape.partitions_model
    newest = None
    if resume and not ranks.rank:
        read = checkpoint.open_lazy_checkpoint if partitions_model else checkpoint.read_checkpoint
        newest = checkpoint.read_newest_checkpoint(checkpoints, read=read)
    return (share_checkpoint if partitions_model else broadcast_checkpoint)(newest, ranks)


def _pretrained_info(resumed_dir: Path | None, origin: Run | None) -> tuple[int, str | None]:
    """Vocabulary size (0 if the tokenizer sets it) and model family of the run to resume or start from."""
    if resumed_dir:
        config = read_run_config(resumed_dir)
        return config.model.vocab_size, config.family
    return (origin.config.vocab_size, origin.family) if origin else (0, None)


def _load_or_train_tokenizer(
    recipe: Recipe, factory: TaskFactory, resume: bool, report: Reporter, origin: Tokenizer | None
) -> Tokenizer:
    """Load the tokenizer of the resumed run, or make that of the recipe; ``origin``: that of init_from."""
    if resume:
        return Tokenizer.load(recipe.out)
    section = recipe.tokenizer
    start_time, counter = time.monotonic(), DecomposedCounter()
    tokenizer = make_tokenizer(recipe, lambda: counter.count(factory.iter_texts(recipe)), origin)
    duration = format_seconds(time.monotonic() - start_time)
    if origin:
        count = tokenizer.max_id - origin.max_id
        report.info(tr("tokenizer: {count:,} new tokens in {time}", count=count, time=duration))
        return tokenizer
    line = tr("tokenizer: {count:,} tokens in {time}", count=tokenizer.vocab_size, time=duration)
    vocab_size = section.vocab_size
    if not section.file and tokenizer.vocab_size < vocab_size and section.kind.name not in ("byte", "char"):
        line += tr("; the text has no more, though vocab_size is {vocab_size:,}", vocab_size=vocab_size)
    report.info(line)
    if not tokenizer.composes_characters and (warning := counter.describe()):
        report.info(warning)
    return tokenizer


def _open_task(
    recipe: Recipe, tokenizer: Tokenizer, min_vocab_size: int, teachers: Sequence[Run], report: Reporter
) -> tuple[Task, ModelConfig]:
    """Open the task with its text and its teachers; returns it and the model config.

    The vocabulary has at least ``min_vocab_size`` tokens, as published weights may have more than their
    tokenizer.
    """
    factory: TaskFactory = TASK.get(recipe.task.name)
    task = factory.open(recipe, tokenizer, report)
    for line in format_shares(task.shares):
        report.info(line)
    config = recipe.model.with_vocabulary(
        max(min_vocab_size, tokenizer.target_tokenizer.vocab_size, tokenizer.target_tokenizer.max_id + 1),
        task.labels,
        get_problem_type(task),
        tokenizer.source_size,
    )
    if recipe.distill:
        task = make_distillation_task(task, recipe, teachers, tokenizer)
        check_widths(task, config.d_model)
    return task, config


def _warn_schedule(train_config: TrainConfig, steps: int, report: Reporter) -> None:
    """Warn of a learning rate schedule with which the model hardly learns."""
    if warning := warn_long_warmup(train_config.schedule, steps):
        report.info(
            translate_message(f"{warning}: train.lr is reached late or never; set train.schedule.warmup")
        )
    if warning := warn_factor(train_config.schedule, train_config.lr):
        report.info(translate_message(warning))


def _evaluate_final_weights(
    run: Run,
    task: Task,
    outcome: Outcome,
    training: TrainState,
    strategy: Strategy,
    report: Reporter,
    evaluator: Evaluator | None,
) -> TrainStatus:
    """Write the run directory and evaluate the final weights; returns the status of the run.

    The run is saved with its loss before any other metric is computed, so that a later error loses no
    weights. A signal during evaluation gives the status "interrupted"; --resume evaluates again.
    """
    recipe, ranks = run.recipe, strategy.ranks
    assert recipe is not None
    try:
        measure = partial(measure_metric, training, strategy, recipe.train.best_metric)
        final = load_final_weights(training, recipe.train, recipe.out / "checkpoints", measure, ranks)
        merge_lora(run.model)
        with interrupt_on_signal():
            map_fn = _report_progress(ranks, report)
            inner = without_teacher(task)
            calibration = inner.calibrate(run.model, map_fn) if isinstance(inner, LabeledTextTask) else {}
            facts = _collect_facts(run, task, final.description, map_fn) | calibration
            card = format_model_card(task.title, task.usage, facts)
            ranks.on_rank0(lambda: run.save(recipe.out, card, final.selection))
            ranks.on_rank0(lambda: save_training_counts(task, run))
            ranks.on_rank0(lambda: save_validation_examples(recipe))
            facts |= (
                ranks.on_rank0(lambda: evaluator(run, task)) if evaluator else task.collect_facts(run, map_fn)
            )
            facts = ranks.on_rank0(lambda: add_baselines(facts, task, run))
    except KeyboardInterrupt:
        ranks.interrupt()
        report.info(tr("training is finished, the final evaluation is not"))
        return "interrupted"
    if not ranks.rank:
        replace_file(recipe.out / "README.md", format_model_card(task.title, task.usage, facts).encode())
    line = tr("finished at step {step}", step=outcome.step)
    if outcome.status != "done":
        line = tr("finished ({how}) at step {step}", how=tr(outcome.status), step=outcome.step)
    scores = describe_final_scores(facts)
    report.info(tr("{line}: {scores}", line=line, scores=scores) if scores else line)
    if "verdict" in facts:
        report.info(translate_fact(facts["verdict"]))
    return outcome.status


def _report_progress(ranks: ProcessGroup, report: Reporter) -> MapFn:
    """``ranks.map`` that reports from time to time which share of the items is done."""
    show = every_few_seconds(report.info)

    def map_items(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        numbers = itertools.count(1)

        def work_and_report(item: Any) -> Any:
            result = work(item)
            show(tr("evaluating: {share:.0%}", share=min(1, next(numbers) * ranks.world_size / len(items))))
            return result

        return ranks.map(work_and_report, items)

    return map_items


def _collect_facts(run: Run, task: Task, origin: str, map_fn: MapFn) -> dict[str, str]:
    """Facts of the final weights for the README.md; a UserError if their loss is not finite."""
    run.model.eval()
    with torch.inference_mode():
        metrics = task.evaluate(run.model, map_fn)
    if not math.isfinite(metrics["loss"]):
        raise UserError(
            f"the weights ({origin}) have no finite loss on the validation text; try a lower train.lr"
        )
    facts = {"weights": origin, "valid loss": f"{metrics['loss']:.4f}"}
    if "ppl" in metrics:
        facts["valid perplexity"] = f"{metrics['ppl']:.3f}"
    return facts | corpus_facts(task.shares, metrics)


def format_model_card(title: str, usage: str, facts: dict[str, str]) -> str:
    """The README.md of a run directory: title, table of metrics and a usage example."""
    rows = "\n".join(f"| {escape_cell(name)} | {escape_cell(value)} |" for name, value in facts.items())
    return (
        f"# {title}\n\nTrained with Polyhead; `recipe.yaml` reproduces it.\n\n| measure | value |\n| --- | "
        f"--- |\n{rows}\n\n```sh\n{usage}\n```\n"
    )


def escape_cell(text: str) -> str:
    """Escape vertical bars for a cell of a Markdown table; signatures and class names may have them."""
    return text.replace("|", "\\|")
