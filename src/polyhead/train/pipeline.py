"""From a recipe to a finished run directory: text, tokenizer, model, training, evaluation."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polyhead.analysis.forecast import duration
from polyhead.analysis.run_record import read_metrics
from polyhead.config import ModelConfig
from polyhead.core.i18n import tr, translate_fact, translate_message
from polyhead.errors import UserError
from polyhead.export.targets import describe_targets, find_obstacles
from polyhead.fast.memory import tune_memory
from polyhead.files import replace_file
from polyhead.models import build
from polyhead.nn.adapter import merge
from polyhead.nn.place import device_of
from polyhead.recipe import Recipe, TrainConfig
from polyhead.registry import TASK
from polyhead.run import Run
from polyhead.run_files import read_config, read_family
from polyhead.text.learn import train_tokenizer
from polyhead.text.tokenizer import Tokenizer
from polyhead.train import checkpoint
from polyhead.train.baselines import add_baselines, keep_counts
from polyhead.train.distill import check_widths, distilled, open_teachers
from polyhead.train.forecast import Timed
from polyhead.train.learned import counted
from polyhead.train.lock import RunLock
from polyhead.train.loop import How, OnEvaluation, Outcome, measure_metric, total_steps, train
from polyhead.train.ranks import ALONE, Each, Ranks
from polyhead.train.report import RunReport
from polyhead.train.reporting import Metrics, Reporter, Reporters, TensorBoard, at_terminal
from polyhead.train.resume import check_directory, check_rates, check_same
from polyhead.train.room import check_room
from polyhead.train.schedule import faint, late
from polyhead.train.shared import check_alike, everywhere, from_first
from polyhead.train.signals import end_on_signal, stop_on_signal
from polyhead.train.start import begin, check_parts, open_start, resolved
from polyhead.train.tasks.base import RunTask, TaskPart
from polyhead.train.trackers import open_tracker
from polyhead.train.training import Training, final_weights

Judge = Callable[[Run, Any], dict[str, str]]
"""Measures the final weights of a run: facts for its README.md."""


def run_training(
    recipe: Recipe,
    *,
    resume: bool = False,
    report: Reporter | None = None,
    tokenizer: Tokenizer | None = None,
    judge: Judge | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Run, Outcome]:
    """Do all that a recipe says. A run that was interrupted goes on with ``resume`` as if it had not been.

    The lock on the directory keeps a second process out; Ctrl-C and SIGTERM save and end the run in good order.
    A ``tokenizer`` that is given is not trained anew; ``judge`` measures the result in place of the task. Of several
    ``ranks`` (``polyhead.train.several.joined``) the first alone uses the directory; all return the measured weights.
    """
    tune_memory()
    ranks.use_threads(recipe.train.threads)
    device = device_of(recipe.train.device)
    out, checkpoints, first = recipe.out, recipe.out / "checkpoints", not ranks.rank
    begun = ranks.tell(lambda: resume and bool(checkpoint.steps(checkpoints)))
    origin = ranks.in_turn(lambda: open_start(recipe, begun))
    recipe = resolved(recipe, origin)
    teachers = ranks.in_turn(lambda: open_teachers(recipe.distill, str(device)))
    before = check_directory(recipe, resume) if first else None
    part: TaskPart = TASK.get(recipe.task.name)
    # a mistake in the files, or in a name of a part, is told now, not at the end
    ranks.in_turn(lambda: part.check(recipe))
    if not resume:
        check_parts(recipe, origin)
    with RunLock(out) if first else nullcontext():
        saved = everywhere(checkpoint.newest(checkpoints) if resume and first else None, ranks)
        done = saved.step if saved else 0
        page = RunReport(out, resumed=bool(done)) if first else None
        with reporters(recipe, done, report) if first else Reporters() as several, page or nullcontext():
            told = Timed(several, read_metrics(out / "metrics.jsonl") if first else (), done)
            if origin and not resume:
                tokenizer = origin.tokenizer
            elif tokenizer is None or resume:
                tokenizer = from_first(ranks, lambda: _tokenizer(recipe, part, resume, told))
            known, family = ranks.tell(lambda: _known(out if resume else None, origin))
            task, config = ranks.in_turn(lambda: _opened(recipe, tokenizer, known, teachers, told))
            run = Run(build(config, recipe.train.seed).to(device), tokenizer, recipe.generation, recipe)
            run.family = family
            if recipe.start and not saved:
                # of the checkpoints none was whole, if it was not opened before
                start = origin or ranks.in_turn(lambda: open_start(recipe))
                assert start is not None
                told.say(begin(run.model, start, recipe.start.every, recipe.train.adapt))
            steps = total_steps(task, recipe.train)
            training = Training(run.model, recipe.train, config.d_model, steps)
            extra = {"tokenizer_sha256": tokenizer.sha256, **task.identity}
            check_alike(ranks, recipe, run.model, extra)
            if saved:
                if before:
                    check_same(saved, extra, before, recipe)
                    planned = total_steps(task, before.train)
                    check_rates(recipe.train, config.d_model, saved.step, planned, steps)
                training.restore(saved)
                told.say(tr("resumed at step {step} of {steps}", step=saved.step, steps=steps))
            if first:
                run.save_description(out)
            ranks.tell(lambda: check_room(out, training, config, recipe.train, steps))
            size = counted(run.model)
            told.say(
                tr(
                    "{size}, {steps:,} steps on {n} processes, to {out}",
                    size=size,
                    steps=steps,
                    n=ranks.world,
                    out=out,
                )
                if ranks.world > 1
                else tr("{size}, {steps:,} steps, to {out}", size=size, steps=steps, out=out)
            )
            if first:
                told.say(describe_targets(find_obstacles(config, tokenizer, family)))
            _warn(recipe.train, steps, told)
            if page:
                page.start(run, task, told.say)
            with stop_on_signal(told.say) as stopped:
                on_evaluation: OnEvaluation = page.update if page else lambda row: None
                outcome = train(
                    training, task, recipe.train, checkpoints, told, stopped, extra, ranks, on_evaluation
                )
                if outcome.how != "interrupted":
                    if took := told.compared(outcome.step):
                        told.say(took)
                    outcome.how = _finish(run, task, outcome, training, told, judge, ranks)
            if outcome.how == "interrupted":
                on = shlex.join(["polyhead", "train", str(out / "recipe.yaml"), "--resume", *ranks.again])
                saved_at = tr("saved at step {step}", step=outcome.step)
                # whoever has a judge of its own goes on in its own way
                told.say(
                    saved_at if judge else tr("{saved}; go on with: {command}", saved=saved_at, command=on)
                )
            run.model.eval()
            if page:
                page.finish(outcome.how)
                told.say(tr("report: {path}", path=page.path))
            return run, outcome


def _known(resumed: Path | None, origin: Run | None) -> tuple[int, str | None]:
    """How many tokens there are, 0 where the text must tell, and the published family that the model came from."""
    if resumed:
        return read_config(resumed).vocab_size, read_family(resumed)
    return (origin.config.vocab_size, origin.family) if origin else (0, None)


def reporters(recipe: Recipe, from_step: int, shown: Reporter | None) -> Reporters:
    """Terminal, metrics.jsonl and, if asked for, TensorBoard and a tracker of experiments."""
    shown = shown or at_terminal()
    boards: list[Reporter] = []
    if recipe.train.tensorboard:
        boards.append(TensorBoard(recipe.out / "tensorboard", from_step))
    if recipe.train.log:
        boards.append(open_tracker(recipe, from_step > 0, shown.say))
    return Reporters(shown, Metrics(recipe.out / "metrics.jsonl", from_step), *boards)


def _tokenizer(recipe: Recipe, part: TaskPart, resume: bool, report: Reporter) -> Tokenizer:
    """The tokenizer of the run that goes on, or a new one."""
    if resume:
        return Tokenizer.load(recipe.out)
    started = time.monotonic()
    tokenizer = train_tokenizer(
        part.texts(recipe), recipe.tokenizer.kind, recipe.tokenizer.vocab_size, recipe.tokenizer.sentinels
    )
    took = duration(time.monotonic() - started)
    report.say(tr("tokenizer: {count:,} tokens in {time}", count=tokenizer.vocab_size, time=took))
    return tokenizer


def _opened(
    recipe: Recipe, tokenizer: Tokenizer, known: int, teachers: Sequence[Run], report: Reporter
) -> tuple[RunTask, ModelConfig]:
    """The task with its text and its teachers, and the model that it wants: of published weights more tokens may be ``known``."""
    part: TaskPart = TASK.get(recipe.task.name)
    task = part.open(recipe, tokenizer, report)
    config = recipe.model.with_vocabulary(max(known, tokenizer.vocab_size), task.labels)
    if recipe.distill:
        task = distilled(task, recipe, teachers, tokenizer)
        check_widths(task, config.d_model)
    return task, config


def _warn(train: TrainConfig, steps: int, report: Reporter) -> None:
    """Say what hardly lets the model learn."""
    if said := late(train.schedule, steps):
        report.say(
            translate_message(f"{said}: train.lr is reached late or never; train.schedule.warmup sets it")
        )
    if said := faint(train.schedule, train.lr):
        report.say(translate_message(said))


def _finish(
    run: Run,
    task: RunTask,
    outcome: Outcome,
    training: Training,
    report: Reporter,
    judge: Judge | None,
    ranks: Ranks,
) -> How:
    """Write the run directory and measure the final weights; returns how the run has ended.

    The run is saved with its loss before anything else is measured: what goes wrong then loses no weights. A signal
    while it measures makes the end "interrupted", and --resume measures anew.
    """
    recipe = run.recipe
    assert recipe is not None
    try:
        measure = partial(measure_metric, training, task, recipe.train.metric, ranks)
        origin = final_weights(training, recipe.train, recipe.out / "checkpoints", measure, ranks)
        merge(run.model)
        with end_on_signal():
            facts = _facts(run, task, origin, ranks.map)
            ranks.tell(lambda: run.save(recipe.out, card(task.title, task.use, facts)))
            ranks.tell(lambda: keep_counts(task, run))
            facts |= ranks.tell(lambda: judge(run, task)) if judge else task.facts(run, ranks.map)
            facts = ranks.tell(lambda: add_baselines(facts, task, run))
    except KeyboardInterrupt:
        ranks.interrupt()
        report.say(tr("training is done, its final evaluation is not"))
        return "interrupted"
    if not ranks.rank:
        replace_file(recipe.out / "README.md", card(task.title, task.use, facts).encode())
    for name, value in facts.items():
        report.say(tr("{name}: {value}", name=translate_fact(name), value=translate_fact(value)))
    # there it stands for the run
    use = re.sub(r"(?<=[ =])\.(?= |$)", lambda _: shlex.quote(str(recipe.out)), task.use)
    report.say(
        tr("finished at step {step}; use it: {command}", step=outcome.step, command=use)
        if outcome.how == "done"
        else tr(
            "finished ({how}) at step {step}; use it: {command}",
            how=tr(outcome.how),
            step=outcome.step,
            command=use,
        )
    )
    return outcome.how


def _facts(run: Run, task: RunTask, origin: str, each: Each) -> dict[str, str]:
    """What is known of any final weights, for the README.md; a UserError where they give no finite loss."""
    run.model.eval()
    with torch.inference_mode():
        measured = task.evaluate(run.model, each)
    if not math.isfinite(measured["loss"]):
        raise UserError(
            f"the weights ({origin}) give no finite loss on the validation text; try a lower train.lr"
        )
    facts = {"weights": origin, "valid loss": f"{measured['loss']:.4f}"}
    if "ppl" in measured:
        facts["valid perplexity"] = f"{measured['ppl']:.3f}"
    return facts


def card(title: str, use: str, facts: dict[str, str]) -> str:
    """The README.md of a run directory: what it is and how good, and how to use it."""
    rows = "\n".join(f"| {cell(name)} | {cell(value)} |" for name, value in facts.items())
    return (
        f"# {title}\n\nTrained with Polyhead; `recipe.yaml` makes it again.\n\n"
        f"| measure | value |\n| --- | --- |\n{rows}\n\n```sh\n{use}\n```\n"
    )


def cell(text: str) -> str:
    """A text in a table of Markdown, where a bare bar begins the next column: signatures have them, classes may."""
    return text.replace("|", "\\|")
