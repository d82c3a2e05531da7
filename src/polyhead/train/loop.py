"""The training loop: one function that can be read from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn

from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.files import remove
from polyhead.nn.loss import Loss
from polyhead.nn.weights import running, weights
from polyhead.recipe import TrainConfig
from polyhead.train import checkpoint
from polyhead.train.optim import set_rates
from polyhead.train.precision import autocast, resolve
from polyhead.train.progress import Progress, Sums
from polyhead.train.ranks import ALONE, Each, Ranks
from polyhead.train.reporting import Reporter
from polyhead.train.training import Training, prune

MOST_SKIPPED = 10  # updates in a row that may fail to be finite


class Task(Protocol):
    """What is learned. Losses are sums, so that accumulation averages exactly."""

    labels: tuple[str, ...]  # classes of texts, which are then what is counted in place of tokens

    def plan(self, epoch: int) -> Sequence[Any]: ...
    def hardest(self) -> Any: ...
    def deal(self, rows: Any, n: int) -> list[Any]: ...
    def batch(self, rows: Any) -> Any: ...
    def count(self, batch: Any) -> int: ...
    def loss(self, model: nn.Module, batch: Any) -> Loss: ...
    def evaluate(self, model: nn.Module, each: Each = map) -> dict[str, float]: ...


OnEvaluation = Callable[[dict[str, float]], None]
How = Literal["done", "stopped early", "interrupted"]


@dataclass
class Outcome:
    """How a training ended, and where."""

    how: How
    step: int
    progress: Progress


def total_steps(task: Task, config: TrainConfig) -> int:
    """Updates from the limits of the recipe, whichever comes first."""
    limits = [config.steps] if config.steps else []
    if config.epochs:
        limits.append(max(1, math.ceil(config.epochs * len(task.plan(0)) / config.accumulate)))
    return min(limits)


def seed_of(seed: int, step: int, rank: int = 0) -> int:
    """The seed of one step's dropout, mixed, because torch's CPU generator looks at the low 32 bits alone."""
    key = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


def train(
    training: Training,
    task: Task,
    config: TrainConfig,
    checkpoints: Path,
    report: Reporter,
    stop: Callable[[], bool] = lambda: False,
    extra: dict[str, str] | None = None,
    ranks: Ranks = ALONE,
    on_evaluation: OnEvaluation = lambda row: None,
) -> Outcome:
    """Train until the steps are done, progress ends, or ``stop`` asks for it on any rank.

    Every step draws its dropout from (seed, step), and the order of the data is a function of (seed, epoch), so
    a run that is killed and resumed ends with the same bits as one that never stopped. A batch is the same on any
    number of ranks, which take its rows in turn, and the batches of an evaluation; the first of them saves and reports.
    ``on_evaluation`` is called with what was measured, while the model is as it was evaluated.
    """
    model, progress = training.model, training.progress
    steps, start = total_steps(task, config), progress.step
    stream = progress.batches(task.plan)
    clock = Clock(progress, "texts" if task.labels else "tokens")
    interrupted = False
    if start < steps:
        rehearse(model, task, config, ranks)
    while progress.step < steps and not _exhausted(progress, config) and not interrupted:
        model.train()
        progress.step += 1
        torch.manual_seed(seed_of(config.seed, progress.step, ranks.rank))
        parts = [ranks.share(task, next(stream)) for _ in range(config.accumulate)]
        batches = [task.batch(part[0]) if part else None for part in parts]
        if why := update(training, task, batches, config, ranks):
            report.say(tr("step {step}: {why}; skipped", step=progress.step, why=why))
            ranks.tell(lambda: _check_skips(progress, checkpoints, steps))
        last = progress.step == steps
        if progress.step % config.log_every == 0 or last:
            rate = {"lr": training.schedule(progress.step) * config.lr, "epoch": progress.epoch}
            counters = {"skipped": progress.skipped, "step": progress.step, "steps": steps}
            report.train({**progress.sums.means(), **clock.speed(), **rate, **counters})
            progress.sums = Sums()
        improved = (progress.step % config.eval_every == 0 or last) and _evaluate(
            training, task, config, report, ranks, on_evaluation
        )
        interrupted = any(ranks.sum(stop()))
        ends = last or interrupted or _exhausted(progress, config)
        due = progress.step % config.save_every == 0 and not progress.in_a_row
        if due or improved or ends:
            ranks.tell(lambda: _save(training, config, checkpoints, extra or {}))
            ranks.copy(weights(model).values())  # unlike processors round unlike, which must not add up
    if interrupted:
        return Outcome("interrupted", progress.step, progress)
    ranks.tell(lambda: prune(training, config, checkpoints))
    return Outcome("done" if progress.step >= steps else "stopped early", progress.step, progress)


def rehearse(model: nn.Module, task: Task, config: TrainConfig, ranks: Ranks = ALONE) -> None:
    """Run the costliest batch once and learn nothing: what does not fit into memory fails now, not after hours."""
    device = next(model.parameters()).device
    before = {name: statistic.clone() for name, statistic in running(model).items()}
    try:
        with ranks.partaking(model):
            for part in ranks.share(task, task.hardest()):
                with autocast(resolve(config.precision, device), device):
                    loss = task.loss(model.train(), task.batch(part))
                if loss.count:
                    loss.total.backward()
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(
            error
        ):
            raise
        raise UserError(
            f"the largest batch does not fit into memory; lower train.max_tokens ({config.max_tokens}), "
            "data.max_len or the size of the model"
        ) from error
    finally:
        model.zero_grad(set_to_none=True)
        for name, statistic in running(model).items():
            statistic.copy_(before[name])


class Clock:
    """Speed since the last look."""

    def __init__(self, progress: Progress, what: str = "tokens") -> None:
        self.progress, self.what = progress, what  # what has a label
        self.restart()

    def restart(self) -> None:
        """What comes now counts."""
        self.since, self.step, self.tokens = time.perf_counter(), self.progress.step, self.progress.tokens

    def speed(self) -> dict[str, float]:
        """Labels a second and milliseconds a step; evaluations and checkpoints count as time."""
        seconds = max(time.perf_counter() - self.since, 1e-9)
        tokens, steps = self.progress.tokens - self.tokens, self.progress.step - self.step
        self.restart()
        return {f"{self.what}_per_s": tokens / seconds, "ms_per_step": 1e3 * seconds / max(steps, 1)}


def _exhausted(progress: Progress, config: TrainConfig) -> bool:
    """Whether so many evaluations brought nothing that the run ends."""
    return config.patience is not None and progress.stale >= config.patience


def update(
    training: Training, task: Task, batches: Sequence[Any], config: TrainConfig, ranks: Ranks = ALONE
) -> str:
    """One step of the optimisers over some batches; or why there was none, as nothing was to be learned, or nothing finite.

    Of several ranks each has its part of the batches, or None, and all make the same step.
    """
    model, progress, scale = training.model, training.progress, training.scale
    count = int(*ranks.sum(sum(task.count(batch) for batch in batches if batch is not None)))
    total = nll = 0.0
    # the gradients of the last batch are complete one by one, and travel while others are computed
    for some, summing in ((batches[:-1], nullcontext()), (batches[-1:], ranks.summing(model))):
        with summing:
            for batch in some:
                with ranks.partaking(model):
                    if batch is None:
                        continue
                    with autocast(training.precision, training.device):
                        loss = task.loss(model, batch)
                    if loss.count:
                        share = loss.total.float() / count  # in fp16 it would overflow with its scale
                        (share * scale.value if scale else share).backward()
                        total, nll = total + float(loss.total.detach()), nll + float(loss.nll)
    total, nll = ranks.sum(total, nll)
    if scale:
        scale.divide(model)
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm or math.inf))
    finite = math.isfinite(total + norm)
    if count and finite:
        set_rates(training.optimizers, training.schedule(progress.step))
        for optimizer in training.optimizers:
            optimizer.step()
        if training.ema:
            training.ema.update(model, progress.step)
        _count(progress, total, nll, norm, count)
    model.zero_grad(set_to_none=True)
    if scale and count and math.isfinite(total) and scale.learn(finite):
        progress.skipped += 1
        return tr(
            "gradients overflow in fp16, so the loss is scaled by {scale:g} from now on", scale=scale.value
        )
    if count and finite:
        return ""
    progress.skipped += 1
    progress.in_a_row += not finite
    return tr("no label counts, nothing to learn") if finite else tr("the loss is not finite")


def _count(progress: Progress, total: float, nll: float, norm: float, count: int) -> None:
    progress.tokens += count
    progress.updated, progress.in_a_row = progress.step, 0
    s = progress.sums
    progress.sums = Sums(s.total + total, s.nll + nll, s.norm + norm, s.count + count, s.updates + 1)


def _check_skips(progress: Progress, checkpoints: Path, steps: int) -> None:
    """A loss that stays beyond all numbers ends the run, and a short run in which it was never within them."""
    times = progress.in_a_row
    if times >= MOST_SKIPPED or (times and progress.step == steps and not progress.updated):
        raise _diverged(f"the loss was not finite for {times} updates in a row", progress, checkpoints)


def _diverged(what: str, progress: Progress, checkpoints: Path) -> UserError:
    """The end of a run whose weights are of no use any more, with the way back.

    Checkpoints since the last update hold just these weights and go, so that the newest one is a good one.
    """
    for step in checkpoint.steps(checkpoints):
        if step >= progress.updated:
            remove(checkpoints / f"step-{step}")
    good = checkpoint.newest(checkpoints)
    where = f"the last good checkpoint is {good.path}" if good else "there is no good checkpoint"
    return UserError(
        f"{what}, at step {progress.step}; {where}; "
        "try a lower train.lr, a longer warm-up or train.precision=fp32, with another out=..."
    )


def _save(training: Training, config: TrainConfig, checkpoints: Path, extra: dict[str, str]) -> None:
    """Write a checkpoint, if its weights are numbers.

    Older ones are deleted first and not after: the steps since then have shown that the newest of them is good,
    of the one to be written nobody knows yet.
    """
    if not training.finite():
        raise _diverged("the weights are not finite", training.progress, checkpoints)
    prune(training, config, checkpoints)
    training.save(checkpoints, extra)


def _evaluate(
    training: Training,
    task: Task,
    config: TrainConfig,
    report: Reporter,
    ranks: Ranks,
    on_evaluation: OnEvaluation,
) -> bool:
    """Measure, with the averaged weights where there are any; True if it is the best so far."""
    model, progress = training.model, training.progress
    started = time.perf_counter()
    model.eval()

    with training.ema.applied(model) if training.ema else nullcontext():
        ranks.copy(weights(model).values())  # as before a checkpoint: what is measured is one model
        with torch.inference_mode():
            measured = task.evaluate(model, ranks.map)
        measured = ranks.tell(lambda: measured)  # processors may differ in the last bit of a logarithm
        ranks.tell(lambda: on_evaluation({**measured, "step": progress.step}))
    best = progress.improved(measured[config.metric], config.metric != "loss")
    counters = {"step": progress.step, "epoch": progress.epoch, "seconds": time.perf_counter() - started}
    report.valid({**measured, **counters, "best": float(best)})
    return best


def measure_metric(training: Training, task: Task, metric: str, ranks: Ranks) -> float:
    """One measure of the validation text by the weights that are in the model, the same number on all ranks."""
    training.model.eval()
    with torch.inference_mode():
        measured = task.evaluate(training.model, ranks.map)
    return ranks.tell(lambda: measured[metric])
