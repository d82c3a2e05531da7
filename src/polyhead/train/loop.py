"""The training loop."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.evaluate.metrics import KNOWN_METRICS
from polyhead.nn.device import host_batch
from polyhead.nn.state import named_state, running_stats
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import TrainingTask
from polyhead.train.prefetch import BatchPrefetcher
from polyhead.train.progress import MetricSums, Progress
from polyhead.train.strategies.base import Strategy
from polyhead.train.tasks.embedding import EmbeddingTask
from polyhead.train.tasks.preferences import PreferenceTask
from polyhead.train.train_state import TrainState, prune_checkpoints
from polyhead.train.update import PendingMetrics, StepMetrics, record_step

MAX_SKIPPED = 10  # consecutive updates that may be not finite


OnEvaluation = Callable[[dict[str, float]], None]
OnMark = Callable[[int], None]
TrainStatus = Literal["done", "stopped early", "interrupted"]


@dataclass
class Outcome:
    """How a training ended, and at which step."""

    status: TrainStatus
    step: int
    progress: Progress


def total_steps(task: TrainingTask, config: TrainConfig) -> int:
    """Number of optimizer steps: the lower limit of ``steps`` and ``epochs``."""
    limits = [config.steps] if config.steps else []
    if config.epochs:
        limits.append(updates_of_epochs(config.epochs, len(task.epoch_batches(0)), config.accumulate))
    return min(limits)


def updates_of_epochs(epochs: float, batches: float, accumulate: int) -> int:
    """Number of whole updates within some passes over ``batches``; a UserError if there is none.

    Batches that are left are not read: an update with the first ones of another pass would read those twice,
    and a smaller one would differ from that of a run that is resumed for more epochs.
    """
    total = math.ceil(epochs * batches)
    if total < accumulate:
        raise UserError(
            f"train.accumulate is {accumulate}, and train.epochs={epochs:g} has {total} batches, fewer than "
            f"one update: set accumulate to {total} or less, or epochs to {math.ceil(accumulate / batches)} "
            "or more"
        )
    return total // accumulate


def derive_seed(seed: int, step: int, rank: int = 0) -> int:
    """Random seed of one step on one rank; mixed, as torch's CPU generator uses only the low 32 bits."""
    key = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


def train_model(
    training: TrainState,
    strategy: Strategy,
    config: TrainConfig,
    checkpoints: Path,
    report: Reporter,
    should_stop: Callable[[], bool] = lambda: False,
    extra: dict[str, str] | None = None,
    on_evaluation: OnEvaluation = lambda row: None,
    on_mark: OnMark = lambda step: None,
) -> Outcome:
    """Train until all steps are done, ``patience`` runs out, or ``should_stop`` is true on any rank.

    The dropout of a step is seeded by (seed, step, rank), and the data order by (seed, epoch), so a run that
    is killed and resumed ends bit-identical to an uninterrupted one. A batch is the same for any number of
    ranks: its rows are sharded over them, and so are the batches of an evaluation. Rank 0 saves and reports.
    ``on_evaluation`` is called with the metrics, while the model has the weights that were evaluated;
    ``on_mark`` with the steps that ``explain_every`` names, from 0 on.
    """
    task, ranks, progress = strategy.task, strategy.ranks, training.progress
    steps, start, place = total_steps(task, config), progress.step, ranks.place
    batch_source = BatchPrefetcher(
        progress,
        task.epoch_batches,
        config.accumulate,
        strategy.collate,
        lambda step: derive_seed(config.seed, step, place.data_rank),
        training.device,
    )
    clock = SpeedMeter(
        progress, "texts" if task.labels or isinstance(task, PreferenceTask | EmbeddingTask) else "tokens"
    )
    pending: deque[StepMetrics | PendingMetrics] = deque()  # of steps that the device may still compute
    is_interrupted = False

    def prefetch() -> None:
        if progress.step < steps:
            batch_source.prefetch(progress.step + 1)

    def record_pending(n_left: int) -> None:
        while len(pending) > n_left:
            metrics = pending.popleft().read()
            if reason := record_step(progress, metrics):
                report.info(tr("step {step}: {why}; skipped", step=metrics.step, why=reason))
                ranks.on_rank0(partial(_check_skips, progress, checkpoints, metrics.step, steps))

    def take_mark() -> None:
        if config.explain_every and progress.step % config.explain_every == 0:
            ranks.on_rank0(lambda: on_mark(progress.step))

    if start < steps:
        check_memory(training, strategy, config)
    if not start:
        take_mark()
    while progress.step < steps and not _is_out_of_patience(progress, config) and not is_interrupted:
        training.model.train()
        progress.step += 1
        batches = batch_source.take(progress.step)
        if place.seed_rank != place.data_rank:  # tensor-parallel ranks share their rows, but no dropout
            torch.manual_seed(derive_seed(config.seed, progress.step, place.seed_rank))
        pending.append(train_step(strategy, batches, prefetch))
        is_last = progress.step == steps
        is_row_due = is_last or any(
            progress.step % every == 0 for every in (config.log_every, config.eval_every, config.save_every)
        )
        record_pending(0 if is_row_due else strategy.delay)
        take_mark()
        if progress.step % config.log_every == 0 or is_last:
            rate = {"lr": training.schedule(progress.step) * config.lr, "epoch": progress.epoch}
            counters = {"skipped": progress.skipped, "step": progress.step, "steps": steps}
            report.log_train({**progress.sums.compute_means(), **clock.read_speed(), **rate, **counters})
            progress.sums = MetricSums()
        is_best = (progress.step % config.eval_every == 0 or is_last) and _evaluate(
            training, strategy, config, report, on_evaluation
        )
        is_interrupted = any(ranks.all_reduce(should_stop()))
        if is_interrupted:
            record_pending(0)
        is_end = is_last or is_interrupted or _is_out_of_patience(progress, config)
        is_due = progress.step % config.save_every == 0 and not progress.consecutive_skips
        if is_due or is_best or is_end:
            _save_checkpoint(training, strategy, config, checkpoints, extra or {})
            # different processors round differently; the differences must not accumulate
            ranks.broadcast_replicas(named_state(training.model).values())
    if is_interrupted:
        return Outcome("interrupted", progress.step, progress)
    ranks.on_rank0(lambda: prune_checkpoints(training, config, checkpoints))
    return Outcome("done" if progress.step >= steps else "stopped early", progress.step, progress)


def train_step(
    strategy: Strategy, batches: Sequence[Any], prefetch: Callable[[], None] = lambda: None
) -> StepMetrics | PendingMetrics:
    """One optimizer step over the accumulated ``batches``; returns its metrics, for ``record_step``.

    ``prefetch`` is called when the passes are queued, while a GPU computes them and nothing is read yet. A
    step is skipped if there is no label, or if the loss or the gradients are not finite. Each rank passes its
    shard of every batch, or a dummy batch; all ranks make the same step and the same passes.
    """
    counts = strategy.ranks.sum_counted(*(strategy.task.count_labels(host_batch(batch)) for batch in batches))
    losses = strategy.forward_backward(batches, counts)
    prefetch()
    return strategy.step(losses, int(sum(counts)))


def check_memory(training: TrainState, strategy: Strategy, config: TrainConfig) -> None:
    """Run the largest batch once without an update; a UserError if it does not fit into memory."""
    model = training.model.train()
    saved_stats = {name: statistic.clone() for name, statistic in running_stats(model).items()}
    try:
        strategy.run_largest_batch()
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(
            error
        ):
            raise
        raise UserError(
            f"the largest batch does not fit into memory; decrease train.max_tokens ({config.max_tokens}), "
            "data.max_len or the size of the model"
            + ("" if config.recompute == "blocks" else ", or set train.recompute=blocks")
        ) from error
    finally:
        model.zero_grad(set_to_none=True)
        for name, statistic in running_stats(model).items():
            statistic.copy_(saved_stats[name])


class SpeedMeter:
    """Training speed since the last reading."""

    def __init__(self, progress: Progress, unit: str = "tokens") -> None:
        self.progress, self.unit = progress, unit  # ``unit`` has the labels
        self.restart()

    def restart(self) -> None:
        """Start counting from now."""
        self.start_time = time.perf_counter()
        self.start_step = self.progress.step
        self.start_tokens = self.progress.tokens

    def read_speed(self) -> dict[str, float]:
        """Labels per second and milliseconds per step, including evaluations and checkpoints."""
        seconds = max(time.perf_counter() - self.start_time, 1e-9)
        tokens, steps = self.progress.tokens - self.start_tokens, self.progress.step - self.start_step
        self.restart()
        return {f"{self.unit}_per_s": tokens / seconds, "ms_per_step": 1e3 * seconds / max(steps, 1)}


def _is_out_of_patience(progress: Progress, config: TrainConfig) -> bool:
    """Whether the last ``patience`` evaluations brought no improvement."""
    return config.patience is not None and progress.evals_since_best >= config.patience


def _check_skips(progress: Progress, checkpoints: Path, step: int, steps: int) -> None:
    """Raise if the loss was not finite for ``MAX_SKIPPED`` steps in a row, or in a whole short run."""
    n_skipped = progress.consecutive_skips
    if n_skipped >= MAX_SKIPPED or (n_skipped and step == steps and not progress.updated):
        message = f"the loss was not finite for {n_skipped} updates in a row"
        raise _divergence_error(message, step, progress.updated, checkpoints)


def _divergence_error(message: str, step: int, updated: int, checkpoints: Path) -> UserError:
    """The error of a diverged run, with its last good checkpoint.

    Deletes the checkpoints since the last update, which hold the same weights, so that the newest one is
    good. One that cannot be deleted is named in a warning.
    """
    checkpoint.delete_steps(
        checkpoints, [saved for saved in checkpoint.list_steps(checkpoints) if saved >= updated]
    )
    newest = checkpoint.read_newest_checkpoint(checkpoints, updated, checkpoint.open_lazy_checkpoint)
    location = f"the last good checkpoint is {newest.path}" if newest else "no good checkpoint"
    return UserError(
        f"{message}, at step {step}; {location}; "
        "try a lower train.lr, a longer warm-up or train.precision=fp32, with another out=..."
    )


def _save_checkpoint(
    training: TrainState, strategy: Strategy, config: TrainConfig, checkpoints: Path, extra: dict[str, str]
) -> None:
    """Write a checkpoint if the weights of all ranks are finite, else raise. All ranks take part.

    Old checkpoints are deleted before, not after: the steps since then have shown that the newest of them is
    good, which is not known yet of the one to write.
    """
    is_finite = not any(strategy.ranks.all_reduce(not training.is_finite()))

    def prepare() -> None:
        if not is_finite:
            step, updated = training.progress.step, training.progress.updated
            raise _divergence_error("the weights are not finite", step, updated, checkpoints)
        prune_checkpoints(training, config, checkpoints)

    strategy.save(checkpoints, extra, prepare)


def _evaluate(
    training: TrainState,
    strategy: Strategy,
    config: TrainConfig,
    report: Reporter,
    on_evaluation: OnEvaluation,
) -> bool:
    """Evaluate, with the EMA weights if there are any; True if it is the best evaluation so far."""
    model, progress, ranks = training.model, training.progress, strategy.ranks
    start_time = time.perf_counter()
    model.eval()

    with training.ema.apply_to(model) if training.ema else nullcontext():
        # as at a checkpoint: all ranks evaluate the same weights
        ranks.broadcast_replicas(named_state(model).values())
        with strategy.no_gradients():
            metrics = strategy.task.evaluate(model, strategy.map)
        metrics = ranks.on_rank0(lambda: metrics)  # results may differ in the last bit between processors
        ranks.on_rank0(lambda: on_evaluation({**metrics, "step": progress.step}))
    higher_is_better = not KNOWN_METRICS[config.best_metric].lower_is_better
    is_best = progress.record_evaluation(metrics[config.best_metric], higher_is_better)
    counters = {"step": progress.step, "epoch": progress.epoch, "seconds": time.perf_counter() - start_time}
    report.log_valid({**metrics, **counters, "best": float(is_best)})
    return is_best


def measure_metric(training: TrainState, strategy: Strategy, metric: str) -> float:
    """One metric of the current weights on the validation text; the same number on all ranks."""
    training.model.eval()
    with torch.inference_mode():
        metrics = strategy.task.evaluate(training.model, strategy.map)
    return strategy.ranks.on_rank0(lambda: metrics[metric])
