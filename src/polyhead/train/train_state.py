"""Training state (model, optimizers, schedule, EMA, counters), and the choice of a run's final weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.optimizer_state_io import flatten_optimizer, unflatten_optimizer
from polyhead.checkpoint.safetensors_io import check_tensors
from polyhead.checkpoint.weight_selection import WeightSelection
from polyhead.config.recipe import TrainConfig
from polyhead.core.registry import OPTIMIZER, SCHEDULE
from polyhead.nn.stack import recompute_blocks
from polyhead.nn.state import named_state
from polyhead.train.distributed.local_tensor import get_local, get_whole, is_split, split_like
from polyhead.train.distributed.process_group import SINGLE_PROCESS, MapFn, ProcessGroup
from polyhead.train.distributed.shard_model import get_sharding_mesh, shard_weights
from polyhead.train.ema import Ema, copy_into
from polyhead.train.loss_module import LossModule, LossTask
from polyhead.train.optim import set_rates
from polyhead.train.precision import LossScale, resolve_precision
from polyhead.train.progress import Progress
from polyhead.train.schedule import Schedule
from polyhead.train.signals import interrupt_on_signal
from polyhead.train.split_adafactor import SplitAdafactor
from polyhead.train.step_numbers import UnreadStep
from polyhead.train.trainable_parameters import prepare_trainable, scale_rates


class SavedState(NamedTuple):
    """The content of a checkpoint."""

    step: int
    tensors: dict[str, dict[str, Tensor]]  # by group (model, ema, optimizer_0, ...) and name
    state: dict[str, Any]  # counters and descriptions, as JSON


class TrainState:
    """Model, optimizers, schedule, EMA and counters, saved and restored together."""

    def __init__(self, model: nn.Module, config: TrainConfig, d_model: int, steps: int) -> None:
        self.model, self.progress = model, Progress()
        self.loss_module: LossModule | None = None
        self.replica: nn.Module | None = None  # ``loss_module`` as ranks with the whole model call it
        self.saved_best_step = 0  # ``best_step`` as stored in the newest checkpoint
        prepare_trainable(model, config)
        recompute_blocks(model, config.recompute == "blocks")
        self.optimizers, self.ema = _build_optimizers(model, config)
        self.schedule: Schedule = SCHEDULE.build(config.schedule, d_model, steps)
        self.is_split = False  # whether this rank holds only a part of the model
        self.device = next(model.parameters()).device
        self.precision = resolve_precision(config.precision, self.device)
        self.loss_scale = LossScale() if self.precision == "fp16" else None
        self.reads_late = False  # whether ``train_step`` leaves the numbers of its step in ``unread``
        self.unread: UnreadStep | None = None

    def is_finite(self) -> bool:
        """Whether all weights are finite. A weight that is NaN or infinite never becomes finite again."""
        return all(bool(torch.isfinite(get_local(w)).all()) for w in named_state(self.model).values())

    def bind_task(self, task: LossTask) -> LossModule:
        """The module that computes the loss of a task with the model; the same object for the same task."""
        if self.loss_module is None or self.loss_module.task is not task:
            self.loss_module, self.replica = LossModule(self.model, task), None
        return self.loss_module

    def bind_ranks(self, task: LossTask, ranks: ProcessGroup) -> nn.Module:
        """The module that a step calls with its batches, within ``reduce_gradients``."""
        loss_module = self.bind_task(task)
        if self.is_split:
            return loss_module
        if self.replica is None:
            self.replica = ranks.replicate(loss_module)
        return self.replica

    def split(self, task: LossTask, ranks: ProcessGroup, config: TrainConfig) -> None:
        """Keep of the model only this rank's part, with optimizers and EMA of it. All ranks call it.

        They have the same weights, of which none was trained yet.
        """
        shape, mesh = ranks.place.shape, ranks.mesh
        if not shape.splits_model:
            return
        assert mesh is not None
        self.optimizers, self.ema, self.is_split = [], None, True
        if shape.shard > 1:
            shard_weights(self.bind_task(task), get_sharding_mesh(mesh, shape), config.parallel.reduce_dtype)
        self.optimizers, self.ema = _build_optimizers(self.model, config)

    def join(self, model: nn.Module, config: TrainConfig) -> None:
        """Continue with a whole model, newly built, after the last step; nothing else is kept."""
        prepare_trainable(model, config)
        self.model, self.loss_module, self.replica, self.is_split = model, None, None, False
        self.optimizers, self.ema = [], None

    def reduce_gradients(self, ranks: ProcessGroup, is_last: bool) -> AbstractContextManager[None]:
        """Context for the forward and backward pass of a batch; ``is_last``: of the last one of a step.

        After the last one gradients are sums over ranks, reduced during the backward pass.
        """
        if not self.is_split:
            adds_up = not is_last and isinstance(self.replica, DistributedDataParallel)
            return self.replica.no_sync() if adds_up else nullcontext()  # type: ignore[operator, union-attr]
        if ranks.place.shape.shard > 1:
            self.loss_module.set_requires_gradient_sync(is_last)  # type: ignore[operator, union-attr]
            return nullcontext()
        return ranks.reduce_gradients(self.model) if is_last else nullcontext()

    def map_in_lockstep(self, ranks: ProcessGroup) -> MapFn:
        """``ranks.map_in_lockstep``, in which work can read the weights of a split model."""
        root = self.loss_module
        if root is None or not self.is_split:
            return ranks.map_in_lockstep

        def map_gathered(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
            results = ranks.map_in_lockstep(lambda item: root.run(lambda: work(item)), items)
            root.reshard()  # type: ignore[operator]  # its weights stay gathered for a backward pass
            return results

        return map_gathered

    def save(self, root: Path, extra: dict[str, str]) -> None:
        """Write checkpoints/step-N. Tied weights are one parameter and are written once."""
        self.write(root, self.export_state(), extra)

    def export_state(self) -> SavedState:
        """All that a checkpoint has of this training, without copies. All ranks call it."""
        tensors: dict[str, dict[str, Tensor]] = {"model": named_state(self.model)}
        state: dict[str, Any] = {"progress": self.progress.to_json(), "optimizers": []}
        for i, optimizer in enumerate(self.optimizers):
            tensors[f"optimizer_{i}"], description = flatten_optimizer(optimizer.state_dict())
            state["optimizers"].append(description)
        if self.ema:
            tensors["ema"] = self.ema.weights
        if self.loss_scale:
            state["loss_scale"] = self.loss_scale.to_json()
        if self.is_split:
            tensors = {
                group: {name: get_whole(tensor) for name, tensor in entries.items()}
                for group, entries in tensors.items()
            }
        return SavedState(self.progress.step, tensors, state)

    def write(self, root: Path, saved_state: SavedState, extra: dict[str, str]) -> None:
        """Write checkpoints/step-N of an exported state."""
        checkpoint.save_checkpoint(
            root, saved_state.step, saved_state.tensors, saved_state.state, extra=extra
        )
        self.saved_best_step = self.progress.best_step

    def restore(self, saved_checkpoint: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint, bit for bit."""
        weights = named_state(self.model)
        check_tensors(saved_checkpoint.tensors["model"], weights, saved_checkpoint.path)
        copy_into(self.model, saved_checkpoint.tensors["model"])
        descriptions = saved_checkpoint.state["optimizers"]
        for i, optimizer in enumerate(self.optimizers):
            entries = saved_checkpoint.tensors[f"optimizer_{i}"]
            optimizer.load_state_dict(
                split_optimizer(optimizer, unflatten_optimizer(entries, descriptions[i]))
            )
        if self.ema:
            check_tensors(saved_checkpoint.tensors["ema"], weights, saved_checkpoint.path)
            self.ema.load(saved_checkpoint.tensors["ema"])
        # absent if the run was saved in another precision
        if self.loss_scale and "loss_scale" in saved_checkpoint.state:
            self.loss_scale.load(saved_checkpoint.state["loss_scale"])
        self.progress = Progress.from_json(saved_checkpoint.state["progress"])
        self.saved_best_step = self.progress.best_step


def split_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """A state dict of whole tensors, those of the shape of their parameter split as it is."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if isinstance(optimizer, SplitAdafactor) or not any(map(is_split, parameters)):
        return state
    entries = {
        i: {
            name: split_like(value, parameters[i])
            if isinstance(value, Tensor) and value.shape == parameters[i].shape
            else value
            for name, value in entry.items()
        }
        for i, entry in state["state"].items()
    }
    return state | {"state": entries}


def _build_optimizers(model: nn.Module, config: TrainConfig) -> tuple[list[Optimizer], Ema | None]:
    """The optimizers of a model with their peak rates, and the average of its weights."""
    optimizers: list[Optimizer] = OPTIMIZER.build(config.optimizer, model, config.lr)
    scale_rates(model, optimizers, config.lr_factors)
    set_rates(optimizers, 1.0)
    return optimizers, Ema(model, config.ema) if config.ema else None


def periodic_checkpoints(steps: list[int], config: TrainConfig) -> list[int]:
    """The checkpoints to average: the last ``average`` of those at multiples of ``save_every``.

    Checkpoints in between, of a best evaluation or of an interruption, would give some parts of training a
    double weight. Step 0 is left out, as it is untrained.
    """
    periodic = [step for step in steps if step and step % config.save_every == 0]
    return periodic[-config.average_checkpoints :] if config.average_checkpoints else []


def prune_checkpoints(training: TrainState, config: TrainConfig, checkpoints: Path) -> None:
    """Delete all checkpoints except the ``keep`` newest, those to be averaged, and the best.

    A new best step may not be saved yet, and may never be: the previous best stays until it is.
    """
    steps = checkpoint.list_steps(checkpoints)
    oldest = min(periodic_checkpoints(steps, config), default=0)
    n_to_average = sum(step >= oldest for step in steps) if config.average_checkpoints else 0
    checkpoint.prune_steps(
        checkpoints, max(config.keep, n_to_average), {training.progress.best_step, training.saved_best_step}
    )


def list_candidates(training: TrainState, config: TrainConfig, checkpoints: Path) -> list[WeightSelection]:
    """Candidates for the final weights: single checkpoints, then the averages of ``ema`` and ``average``.

    Single checkpoints: the one of the best evaluation, or the last if no evaluation was finite. With ``ema``,
    evaluations measure the moving average, so the last weights may be better than those at the best step;
    they are a candidate as well.
    """
    progress = training.progress
    best = progress.best_step or progress.step
    steps = [best, progress.step] if training.ema and best != progress.step else [best]
    candidates = [WeightSelection([step]) for step in steps]
    if training.ema:
        candidates.append(WeightSelection([best], "ema"))
    if config.average_checkpoints:
        saved_steps = [step for step in checkpoint.list_steps(checkpoints) if step <= progress.step]
        averaged_steps = periodic_checkpoints(saved_steps, config)
        if len(averaged_steps) > 1:
            candidates.append(WeightSelection(averaged_steps))
    return candidates


class FinalWeights(NamedTuple):
    """The final weights of a run, and a description with the metric of each candidate."""

    selection: WeightSelection
    description: str


def load_final_weights(
    training: TrainState,
    config: TrainConfig,
    checkpoints: Path,
    measure: Callable[[], float],
    ranks: ProcessGroup = SINGLE_PROCESS,
) -> FinalWeights:
    """Load the final weights into the model on every rank; returns which they are, and all metrics.

    ``measure`` returns ``train.best_metric`` of the model's current weights on the validation text. An
    average is chosen only if it is better than the single checkpoints.
    """
    with interrupt_on_signal():
        records = ranks.on_rank0(
            lambda: [candidate._asdict() for candidate in list_candidates(training, config, checkpoints)]
        )
    candidates = [WeightSelection(**candidate) for candidate in records]

    def load_candidate(candidate: WeightSelection) -> None:
        weights: dict[str, Tensor] = {}
        with interrupt_on_signal():
            ranks.on_rank0(lambda: weights.update(candidate.load(checkpoints)[0]))
        # every rank must take part, so it is not interruptible
        if not ranks.rank:
            copy_into(training.model, weights)
        ranks.broadcast(named_state(training.model).values())

    if len(candidates) == 1:
        load_candidate(candidates[0])
        return FinalWeights(candidates[0], str(candidates[0]))
    values = []
    for candidate in candidates:
        load_candidate(candidate)
        with interrupt_on_signal():
            values.append(measure())
    best = max(range(len(candidates)), key=lambda i: (_sort_key(values[i], config.best_metric), -i))
    load_candidate(candidates[best])
    comparison = "; ".join(
        f"{candidate}: {value:.4f}"
        for candidate, value in zip(candidates, values, strict=True)
        if candidate is not candidates[best]
    )
    description = f"{candidates[best]} ({config.best_metric} {values[best]:.4f}; {comparison})"
    return FinalWeights(candidates[best], description)


def _sort_key(value: float, metric: str) -> float:
    """The metric as a sort key: higher is better, and values that are not finite are last."""
    if not math.isfinite(value):
        return -math.inf
    return -value if metric == "loss" else value
