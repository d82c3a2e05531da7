"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import TrainConfig
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.nn.state import named_state, running_stats
from polyhead.train.distributed.context_parallel import gather_context, split_batch
from polyhead.train.distributed.process_group import SINGLE_PROCESS, MapFn, ProcessGroup
from polyhead.train.gradient_norm import clip_split_gradients
from polyhead.train.loggers import Reporter
from polyhead.train.loss_module import LossTask
from polyhead.train.optim import list_parameters, set_rates
from polyhead.train.precision import autocast
from polyhead.train.prefetch import BatchPrefetcher
from polyhead.train.progress import MetricSums, Progress
from polyhead.train.step_numbers import (
    NumbersInFlight,
    UnreadStep,
    skips_on_device,
    step_if_finite,
    sum_losses,
)
from polyhead.train.train_state import TrainState, prune_checkpoints

if TYPE_CHECKING:
    pass

MAX_SKIPPED = 10  # consecutive updates that may be not finite


class TrainingTask(LossTask, Protocol):
    """Data, loss and evaluation of a training."""

    labels: tuple[str, ...]  # classes of whole texts; if any, speed is counted in texts, not in tokens

    def epoch_batches(self, epoch: int) -> Sequence[Any]: ...
    def largest_batch(self) -> Any: ...
    def shard(self, rows: Any, n: int) -> list[Any]: ...
    def collate(self, rows: Any) -> Any: ...

    def dummy_batch(self) -> Any:
        """A batch of one padding token without a label.

        It changes no loss, gradient or statistic: a rank without rows runs it to join the collectives.
        """
        ...

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]: ...


OnEvaluation = Callable[[dict[str, float]], None]
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
        limits.append(max(1, math.ceil(config.epochs * len(task.epoch_batches(0)) / config.accumulate)))
    return min(limits)


def derive_seed(seed: int, step: int, rank: int = 0) -> int:
    """Random seed of one step on one rank; mixed, as torch's CPU generator uses only the low 32 bits."""
    key = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])


def train_model(
    training: TrainState,
    task: TrainingTask,
    config: TrainConfig,
    checkpoints: Path,
    report: Reporter,
    should_stop: Callable[[], bool] = lambda: False,
    extra: dict[str, str] | None = None,
    ranks: ProcessGroup = SINGLE_PROCESS,
    on_evaluation: OnEvaluation = lambda row: None,
) -> Outcome:
    """Train until all steps are done, ``patience`` runs out, or ``should_stop`` is true on any rank.

    The dropout of a step is seeded by (seed, step, rank), and the data order by (seed, epoch), so a run that
    is killed and resumed ends bit-identical to an uninterrupted one. A batch is the same for any number of
    ranks: its rows are sharded over them, and so are the batches of an evaluation. Rank 0 saves and reports.
    ``on_evaluation`` is called with the metrics, while the model has the weights that were evaluated.
    """
    model, progress, place = training.model, training.progress, ranks.place
    steps, start = total_steps(task, config), progress.step
    batch_source = BatchPrefetcher(
        progress,
        task.epoch_batches,
        config.accumulate,
        lambda rows: _collate(training, task, rows, ranks),
        lambda step: derive_seed(config.seed, step, place.data_rank),
        training.device,
    )
    clock = SpeedMeter(progress, "texts" if task.labels else "tokens")
    is_interrupted = False
    training.reads_late = can_read_late(training, ranks)

    def report_skip(step: int, reason: str) -> None:
        if reason:
            report.info(tr("step {step}: {why}; skipped", step=step, why=reason))
            ranks.on_rank0(lambda: _check_skips(progress, checkpoints, step, steps))

    def prefetch() -> None:
        if progress.step < steps:
            batch_source.prefetch(progress.step + 1)

    def read_step() -> None:
        if unread := training.unread:
            training.unread = None
            report_skip(unread.step, record_step(progress, unread.step, unread.n_labels, *unread.read()))

    if start < steps:
        check_memory(training, task, config, ranks)
    while progress.step < steps and not _is_out_of_patience(progress, config) and not is_interrupted:
        model.train()
        progress.step += 1
        batches = batch_source.take(progress.step)
        if place.seed_rank != place.data_rank:  # ranks with the same rows collate alike and drop apart
            torch.manual_seed(derive_seed(config.seed, progress.step, place.seed_rank))
        before, training.unread = training.unread, None
        report_skip(progress.step, train_step(training, task, batches, config, ranks, prefetch))
        queued, training.unread = training.unread, before
        read_step()  # the step before, while the device computes this one
        training.unread = queued
        is_last = progress.step == steps
        if is_last or any(
            progress.step % every == 0 for every in (config.log_every, config.eval_every, config.save_every)
        ):
            read_step()
        if progress.step % config.log_every == 0 or is_last:
            rate = {"lr": training.schedule(progress.step) * config.lr, "epoch": progress.epoch}
            counters = {"skipped": progress.skipped, "step": progress.step, "steps": steps}
            report.log_train({**progress.sums.compute_means(), **clock.read_speed(), **rate, **counters})
            progress.sums = MetricSums()
        is_best = (progress.step % config.eval_every == 0 or is_last) and _evaluate(
            training, task, config, report, ranks, on_evaluation
        )
        is_interrupted = any(ranks.all_reduce(should_stop()))
        if is_interrupted:
            read_step()
        is_end = is_last or is_interrupted or _is_out_of_patience(progress, config)
        is_due = progress.step % config.save_every == 0 and not progress.in_a_row
        if is_due or is_best or is_end:
            _save_checkpoint(training, config, checkpoints, extra or {}, ranks)
            # different processors round differently; the differences must not accumulate
            ranks.broadcast_replicas(named_state(model).values())
    if is_interrupted:
        return Outcome("interrupted", progress.step, progress)
    ranks.on_rank0(lambda: prune_checkpoints(training, config, checkpoints))
    return Outcome("done" if progress.step >= steps else "stopped early", progress.step, progress)


def check_memory(
    training: TrainState, task: TrainingTask, config: TrainConfig, ranks: ProcessGroup = SINGLE_PROCESS
) -> None:
    """Run the largest batch once without an update; a UserError if it does not fit into memory."""
    model, loss_module = training.model.train(), training.bind_task(task)
    saved_stats = {name: statistic.clone() for name, statistic in running_stats(model).items()}
    try:
        if training.pipeline:
            training.pipeline.check_memory()
            return
        batch = collate_shard(task, task.largest_batch(), ranks)
        with ranks.sync_statistics(model), gather_context(model, ranks):
            with autocast(training.precision, training.device):
                loss = loss_module(batch)
            if any(ranks.all_reduce(loss.count)):
                loss.total.backward()
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


def collate_shard(task: TrainingTask, rows: Any, ranks: ProcessGroup) -> Any:
    """The shard of a batch for this rank; a dummy batch if there are fewer rows than ranks."""
    shard = ranks.shard(task, rows)
    batch = task.collate(shard[0]) if shard else task.dummy_batch()
    return split_batch(task, batch, ranks.place)


def _collate(training: TrainState, task: TrainingTask, rows: Any, ranks: ProcessGroup) -> list[Any]:
    """The batches of this rank of the rows of one: its shard, or in a pipeline the parts of that."""
    return training.pipeline.collate(rows) if training.pipeline else [collate_shard(task, rows, ranks)]


class SpeedMeter:
    """Training speed since the last reading."""

    def __init__(self, progress: Progress, unit: str = "tokens") -> None:
        self.progress, self.unit = progress, unit  # ``unit`` has the labels
        self.restart()

    def restart(self) -> None:
        """Start counting from now."""
        self.start_time, self.start_step, self.start_tokens = (
            time.perf_counter(),
            self.progress.step,
            self.progress.tokens,
        )

    def read_speed(self) -> dict[str, float]:
        """Labels per second and milliseconds per step, including evaluations and checkpoints."""
        seconds = max(time.perf_counter() - self.start_time, 1e-9)
        tokens, steps = self.progress.tokens - self.start_tokens, self.progress.step - self.start_step
        self.restart()
        return {f"{self.unit}_per_s": tokens / seconds, "ms_per_step": 1e3 * seconds / max(steps, 1)}


def _is_out_of_patience(progress: Progress, config: TrainConfig) -> bool:
    """Whether the last ``patience`` evaluations brought no improvement."""
    return config.patience is not None and progress.stale >= config.patience


def train_step(
    training: TrainState,
    task: LossTask,
    batches: Sequence[Any],
    config: TrainConfig,
    ranks: ProcessGroup = SINGLE_PROCESS,
    prefetch: Callable[[], None] = lambda: None,
) -> str:
    """One optimizer step over the accumulated ``batches``; returns why it was skipped, else ''.

    ``prefetch`` is called when the passes are queued, while a GPU computes them and nothing is read yet.
    With ``training.reads_late`` nothing is read: the numbers are in ``training.unread``, for ``record_step``.
    A step is skipped if there is no label, or if the loss or the gradients are not finite. Each rank passes
    its shard of every batch, or a dummy batch; all ranks make the same step and the same passes.
    """
    model, progress, scale = training.model, training.progress, training.loss_scale
    root, parameters = training.bind_ranks(task, ranks), list_parameters(*training.optimizers)
    counts = ranks.sum_counted(*(task.count_labels(batch) for batch in batches))  # labels on all ranks
    count = int(sum(counts))
    losses = (  # total and NLL of each batch in turn
        training.pipeline.forward_backward(batches, 1 / max(count, 1))
        if training.pipeline
        else _forward_backward(training, root, batches, counts, ranks)
    )
    prefetch()
    if training.reads_late and count:
        numbers = [*losses, nn.utils.clip_grad_norm_(parameters, config.clip_norm or math.inf)]
        set_rates(training.optimizers, training.schedule(progress.step))
        skipped = step_if_finite(training.optimizers, numbers)
        if training.ema:
            training.ema.update(model, progress.step, skipped)
        training.unread = UnreadStep(progress.step, count, NumbersInFlight(numbers))
        _drop_gradients(parameters)
        return ""
    total, nll = ranks.sum_counted(*sum_losses(losses))
    if scale:
        scale.unscale(model)
    norm = _clip_gradients(training, parameters, config.clip_norm or math.inf, ranks)
    is_finite = math.isfinite(total + norm)
    if count and is_finite:
        set_rates(training.optimizers, training.schedule(progress.step))
        for optimizer in training.optimizers:
            optimizer.step()
        if training.ema:
            training.ema.update(model, progress.step)
    _drop_gradients(parameters)
    if scale and count and math.isfinite(total) and scale.update(is_finite):
        progress.skipped += 1
        return tr(
            "gradients overflow in fp16, so the loss is scaled by {scale:g} from now on", scale=scale.value
        )
    return record_step(progress, progress.step, count, total, nll, norm)


def _forward_backward(
    training: TrainState,
    root: nn.Module,
    batches: Sequence[Any],
    counts: Sequence[float],
    ranks: ProcessGroup,
) -> list[Tensor]:
    """Gradients of the mean loss of batches with these label counts; returns the sums of each batch."""
    scale, count, model = training.loss_scale, int(sum(counts)), training.model
    losses: list[Tensor] = []
    last = max((i for i, batch_count in enumerate(counts) if batch_count), default=None)
    for i, (batch, batch_count) in enumerate(zip(batches, counts, strict=True)):
        # gradients are final in the last batch with labels, where their sum overlaps with the backward pass
        reduce_context, statistics = training.reduce_gradients(ranks, i == last), ranks.sync_statistics(model)
        with reduce_context, statistics, gather_context(model, ranks):
            with autocast(training.precision, training.device):
                loss = root(batch)
            if batch_count:
                share = loss.total.float() / count  # fp16 would overflow with the loss scale
                (share * scale.value if scale else share).backward()
                losses += [loss.total.detach(), loss.nll]
    training.sum_gradients(ranks)
    return losses


def _clip_gradients(
    training: TrainState, parameters: Sequence[nn.Parameter], max_norm: float, ranks: ProcessGroup
) -> float:
    """Limit the norm of the gradients of all ranks; returns what it was."""
    if training.is_split:
        uncounted = training.pipeline.model.uncounted_weights if training.pipeline else ()
        return clip_split_gradients(parameters, max_norm, ranks, uncounted)
    return float(nn.utils.clip_grad_norm_(parameters, max_norm))


def _drop_gradients(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def can_read_late(training: TrainState, ranks: ProcessGroup) -> bool:
    """Whether the numbers of a step can be read during the next one, so that the device never waits.

    Not where they decide on the CPU: in the loss scale of fp16, between ranks, and in optimizers that cannot
    skip a step by themselves.
    """
    return (
        training.device.type != "cpu"
        and ranks.world_size == 1
        and training.loss_scale is None
        and all(map(skips_on_device, training.optimizers))
    )


def record_step(progress: Progress, step: int, count: int, total: float, nll: float, norm: float) -> str:
    """Count a step; returns why it was skipped, else ''."""
    is_finite = math.isfinite(total + norm)
    if not (count and is_finite):
        progress.skipped += 1
        progress.in_a_row += not is_finite
        return tr("no labels, nothing to learn") if is_finite else tr("the loss is not finite")
    progress.tokens += count
    progress.updated, progress.in_a_row = step, 0
    sums = progress.sums
    progress.sums = MetricSums(
        sums.total + total, sums.nll + nll, sums.norm + norm, sums.count + count, sums.updates + 1
    )
    return ""


def _check_skips(progress: Progress, checkpoints: Path, step: int, steps: int) -> None:
    """Raise if the loss was not finite for ``MAX_SKIPPED`` steps in a row, or in a whole short run."""
    n_skipped = progress.in_a_row
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
    training: TrainState,
    config: TrainConfig,
    checkpoints: Path,
    extra: dict[str, str],
    ranks: ProcessGroup = SINGLE_PROCESS,
) -> None:
    """Write a checkpoint if the weights of all ranks are finite, else raise. All ranks take part.

    Old checkpoints are deleted before, not after: the steps since then have shown that the newest of them is
    good, which is not known yet of the one to write.
    """
    is_finite = not any(ranks.all_reduce(not training.is_finite()))
    saved_state = training.export_state()

    def prepare() -> None:
        if not is_finite:
            step, updated = training.progress.step, training.progress.updated
            raise _divergence_error("the weights are not finite", step, updated, checkpoints)
        prune_checkpoints(training, config, checkpoints)

    def write() -> None:
        prepare()
        training.write(checkpoints, saved_state, extra)

    if not training.is_split:
        ranks.on_rank0(write)
        return
    ranks.on_rank0(prepare)
    training.write_split(
        checkpoints,
        saved_state,
        extra,
        ranks,
        config.parallel.checkpoint == "sharded",
    )


def _evaluate(
    training: TrainState,
    task: TrainingTask,
    config: TrainConfig,
    report: Reporter,
    ranks: ProcessGroup,
    on_evaluation: OnEvaluation,
) -> bool:
    """Evaluate, with the EMA weights if there are any; True if it is the best evaluation so far."""
    model, progress = training.model, training.progress
    start_time = time.perf_counter()
    model.eval()

    with training.ema.apply_to(model) if training.ema else nullcontext():
        # as at a checkpoint: all ranks evaluate the same weights
        ranks.broadcast_replicas(named_state(model).values())
        with torch.no_grad() if training.is_split else torch.inference_mode():
            metrics = task.evaluate(model, training.map_in_lockstep(ranks))
        metrics = ranks.on_rank0(lambda: metrics)  # results may differ in the last bit between processors
        ranks.on_rank0(lambda: on_evaluation({**metrics, "step": progress.step}))
    is_best = progress.record_evaluation(metrics[config.best_metric], config.best_metric != "loss")
    counters = {"step": progress.step, "epoch": progress.epoch, "seconds": time.perf_counter() - start_time}
    report.log_valid({**metrics, **counters, "best": float(is_best)})
    return is_best


def measure_metric(training: TrainState, task: TrainingTask, metric: str, ranks: ProcessGroup) -> float:
    """One metric of the current weights on the validation text; the same number on all ranks."""
    training.model.eval()
    with torch.inference_mode():
        metrics = task.evaluate(training.model, training.map_in_lockstep(ranks))
    return ranks.on_rank0(lambda: metrics[metric])
