"""Training state (model, optimizers, schedule, EMA, counters), and the choice of a run's final weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.optimizer_state_io import flatten_optimizer, unflatten_optimizer
from polyhead.checkpoint.safetensors_io import check_tensors, describe_tensors
from polyhead.checkpoint.weight_selection import WeightSelection
from polyhead.config.recipe import TrainConfig
from polyhead.core.registry import OPTIMIZER, SCHEDULE
from polyhead.nn.stack import recompute_blocks
from polyhead.nn.state import named_state
from polyhead.train.distributed.local_tensor import get_local, is_split, split_like
from polyhead.train.distributed.process_group import SINGLE_PROCESS, MapFn, ProcessGroup
from polyhead.train.distributed.rank_sync import share_tensors
from polyhead.train.distributed.shard_model import get_sharding_mesh, shard_weights
from polyhead.train.ema import Ema, copy_into
from polyhead.train.loss_module import LossModule, LossTask
from polyhead.train.optim import list_parameters, set_rates
from polyhead.train.precision import LossScale, resolve_precision
from polyhead.train.progress import Progress
from polyhead.train.schedule import Schedule
from polyhead.train.signals import interrupt_on_signal
from polyhead.train.split_adafactor import SplitAdafactor
from polyhead.train.step_numbers import UnreadStep
from polyhead.train.trainable_parameters import prepare_trainable, scale_rates, select_factors

if TYPE_CHECKING:
    from polyhead.train.distributed.pipeline import MicroBatchTask
    from polyhead.train.distributed.pipeline_training import PipelineTraining


class SavedState(NamedTuple):
    """The content of a checkpoint."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]  # by group (model, ema, optimizer_0, ...) and name
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
        self.pipeline: PipelineTraining | None = None  # if that part is some of the layers
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

    def split(self, task: MicroBatchTask, ranks: ProcessGroup, config: TrainConfig) -> None:
        """Keep of the model only this rank's part, with optimizers and EMA of it. All ranks call it.

        They have the same weights, of which none was trained yet.
        """
        shape, mesh = ranks.place.shape, ranks.mesh
        if not shape.splits_model:
            return
        assert mesh is not None
        self.is_split = True
        if shape.pipeline > 1:
            # torch's pipelines take a second to import
            from polyhead.train.distributed.pipeline_training import PipelineTraining

            optimizers, self.optimizers, self.ema = self.optimizers, [], None
            self.pipeline = PipelineTraining(self.model, task, optimizers, ranks, config, self.precision)
            del optimizers
        self.optimizers, self.ema = [], None
        if shape.tensor > 1:
            from polyhead.train.distributed.tensor_parallel import split_tensors  # DTensors load slowly

            split_tensors(self.model, mesh["tensor"])
        if shape.shard > 1 and not self.pipeline:
            shard_weights(self.bind_task(task), get_sharding_mesh(mesh, shape), config.parallel.reduce_dtype)
        self.optimizers, self.ema = _build_optimizers(self.model, config, bool(self.pipeline))

    def join(self, model: nn.Module, config: TrainConfig) -> None:
        """Continue with a whole model, newly built, after the last step; nothing else is kept."""
        prepare_trainable(model, config)
        self.model, self.is_split, self.pipeline = model, False, None
        self.loss_module = self.replica = None
        self.optimizers, self.ema = [], None

    def reduce_gradients(self, ranks: ProcessGroup, is_last: bool) -> AbstractContextManager[None]:
        """Context for the forward and backward pass of a batch; ``is_last``: of the last one of a step.

        Gradients are summed over ranks during the last pass, by torch's wrappers of the model; where there is
        none, ``sum_gradients`` does it after the pass.
        """
        if self.is_split and ranks.place.shape.shard > 1:
            self.loss_module.set_requires_gradient_sync(is_last)  # type: ignore[union-attr, operator]
        elif isinstance(self.replica, DistributedDataParallel) and not is_last:
            return self.replica.no_sync()
        return nullcontext()

    def sum_gradients(self, ranks: ProcessGroup) -> None:
        """Sum the gradients of a step over ranks, if no wrapper of the model has."""
        if self.is_split and ranks.place.shape.shard == 1:
            ranks.sum_gradients(self.model)

    def map_in_lockstep(self, ranks: ProcessGroup) -> MapFn:
        """``ranks.map_in_lockstep``, in which work can read the weights of a split model."""
        if self.pipeline:
            return self.pipeline.map_in_lockstep
        root = self.loss_module
        if root is None or not self.is_split:
            return ranks.map_in_lockstep

        def map_gathered(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
            results = ranks.map_in_lockstep(lambda item: root.run(lambda: work(item)), items)
            if ranks.place.shape.shard > 1:
                root.reshard()  # type: ignore[operator]  # its weights stay gathered for a backward pass
            return results

        return map_gathered

    def save(self, root: Path, extra: dict[str, str]) -> None:
        """Write checkpoints/step-N. Tied weights are one parameter and are written once."""
        self.write(root, self.export_state(), extra)

    def export_state(self) -> SavedState:
        """All that a checkpoint has of this training, without copies. All ranks call it."""
        stages = self.pipeline.state if self.pipeline else None
        collect = stages.collect if stages else dict
        tensors: dict[str, Mapping[str, Tensor]] = {"model": collect(named_state(self.model))}
        state: dict[str, Any] = {"progress": self.progress.to_json(), "optimizers": []}
        flattened = (
            stages.flatten_optimizers(self.optimizers)
            if stages
            else [flatten_optimizer(optimizer.state_dict()) for optimizer in self.optimizers]
        )
        for i, (entries, description) in enumerate(flattened):
            tensors[f"optimizer_{i}"] = entries
            state["optimizers"].append(description)
        if self.ema:
            tensors["ema"] = collect(self.ema.weights)
        if self.loss_scale:
            state["loss_scale"] = self.loss_scale.to_json()
        return SavedState(self.progress.step, tensors, state)

    def write(self, root: Path, saved_state: SavedState, extra: dict[str, str]) -> None:
        """Write checkpoints/step-N of an exported state."""
        checkpoint.save_checkpoint(
            root, saved_state.step, saved_state.tensors, saved_state.state, extra=extra
        )
        self.saved_best_step = self.progress.best_step

    def write_split(
        self,
        root: Path,
        saved_state: SavedState,
        extra: dict[str, str],
        ranks: ProcessGroup,
        is_sharded: bool,
    ) -> None:
        """Write checkpoints/step-N of a state that is split over ranks, which all call it."""
        from polyhead.train.distributed.split_checkpoint import save_split  # slow to import

        save_split(root, saved_state, extra, ranks, is_sharded)
        self.saved_best_step = self.progress.best_step

    def restore(self, saved_checkpoint: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint, bit for bit; all ranks call it if their tensors are split."""
        stages = self.pipeline.state if self.pipeline else None
        weights = stages.layout.weights if stages else named_state(self.model)
        check_tensors(describe_tensors(saved_checkpoint.tensors["model"]), weights, saved_checkpoint.path)
        copy_into(self.model, saved_checkpoint.tensors["model"])
        descriptions = saved_checkpoint.state["optimizers"]
        saved = [saved_checkpoint.tensors[f"optimizer_{i}"] for i in range(len(descriptions))]
        if stages:
            stages.load_optimizers(self.optimizers, list(zip(saved, descriptions, strict=True)))
        for i, optimizer in enumerate([] if stages else self.optimizers):
            entries = split_optimizer_tensors(optimizer, saved[i])
            optimizer.load_state_dict(unflatten_optimizer(entries, descriptions[i]))
        if self.ema:
            check_tensors(describe_tensors(saved_checkpoint.tensors["ema"]), weights, saved_checkpoint.path)
            self.ema.load(saved_checkpoint.tensors["ema"])
        # absent if the run was saved in another precision
        if self.loss_scale and "loss_scale" in saved_checkpoint.state:
            self.loss_scale.load(saved_checkpoint.state["loss_scale"])
        self.progress = Progress.from_json(saved_checkpoint.state["progress"])
        self.saved_best_step = self.progress.best_step


def split_optimizer_tensors(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Saved tensors of an optimizer, those of the shape of their parameter split as it is, one at a time."""
    parameters = [p.detach() for p in list_parameters(optimizer)]
    if isinstance(optimizer, SplitAdafactor) or not any(map(is_split, parameters)):
        return tensors
    parts: dict[str, Tensor] = {}
    for name, whole in tensors.items():
        parameter = parameters[int(name.split("/")[1])]  # state/<number>/<key>
        parts[name] = whole
        if whole.shape == parameter.shape:  # a copy, as a part can be a view that keeps the whole in memory
            parts[name] = torch.empty_like(parameter, dtype=whole.dtype).copy_(split_like(whole, parameter))
        del whole
    return parts


def _build_optimizers(
    model: nn.Module, config: TrainConfig, is_stage: bool = False
) -> tuple[list[Optimizer], Ema | None]:
    """The optimizers of a model, or a stage of one, with their peak rates, and the average of its weights."""
    optimizers: list[Optimizer] = OPTIMIZER.build(config.optimizer, model, config.lr)
    # that other stages have the other modules was checked on the whole model
    factors = select_factors(model, config.lr_factors) if is_stage else config.lr_factors
    scale_rates(model, optimizers, factors)
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
    steps = [best, progress.step] if config.ema and best != progress.step else [best]
    candidates = [WeightSelection([step]) for step in steps]
    if config.ema:
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
        with interrupt_on_signal():
            shared = share_tensors(lambda: {candidate.group: candidate.open(checkpoints)}, ranks)
        # every rank must take part, so it is not interruptible
        copy_into(training.model, shared[candidate.group])

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
