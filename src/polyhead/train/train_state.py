"""Training state (model, optimizers, schedule, EMA, counters), and the choice of a run's final weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import SavedState
from polyhead.checkpoint.optimizer_state_io import flatten_optimizer, unflatten_optimizer
from polyhead.checkpoint.safetensors_io import check_tensors, describe_tensors
from polyhead.checkpoint.weight_selection import WeightSelection
from polyhead.config.recipe import TrainConfig
from polyhead.core.registry import OPTIMIZER, SCHEDULE
from polyhead.evaluate.metrics import KNOWN_METRICS
from polyhead.nn.stack import recompute_blocks
from polyhead.nn.state import check_weight, named_state
from polyhead.train.distributed.local_tensor import get_local, is_dtensor, shard_like
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.distributed.rank_sync import share_tensors
from polyhead.train.ema import Ema, copy_into
from polyhead.train.optim import ShardedAdafactor, list_parameters, set_rates
from polyhead.train.precision import LossScale, resolve_precision
from polyhead.train.progress import Progress
from polyhead.train.schedule import Schedule
from polyhead.train.signals import interrupt_on_signal
from polyhead.train.trainable_parameters import prepare_trainable, scale_rates, select_factors


class StateLayout(Protocol):
    """How checkpoints name the weights and optimizer states of which this rank has all or a part."""

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights of the whole model, perhaps without values."""

    def collect(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors of the whole model by the names of weights: the weights, or their moving averages."""

    def flatten_optimizers(self, optimizers: Sequence[Optimizer]) -> Sequence[OptimizerState]:
        """The states of the optimizers of the whole model."""

    def load_optimizers(self, optimizers: Sequence[Optimizer], states: Sequence[OptimizerState]) -> None:
        """Load the part of this rank."""


OptimizerState = tuple[Mapping[str, Tensor], Any]
"""The tensors of an optimizer by path, and its description in JSON."""


class FullLayout:
    """The layout of a rank with all layers, each whole or a shard."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return named_state(self.model)

    def collect(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return dict(weights)

    def flatten_optimizers(self, optimizers: Sequence[Optimizer]) -> Sequence[OptimizerState]:
        return [flatten_optimizer(optimizer.state_dict()) for optimizer in optimizers]

    def load_optimizers(self, optimizers: Sequence[Optimizer], states: Sequence[OptimizerState]) -> None:
        for optimizer, (tensors, description) in zip(optimizers, states, strict=True):
            entries = shard_optimizer_tensors(optimizer, tensors)
            optimizer.load_state_dict(unflatten_optimizer(entries, description))


class TrainState:
    """Model, optimizers, schedule, EMA and counters, saved and restored together."""

    def __init__(self, model: nn.Module, config: TrainConfig, d_model: int, steps: int) -> None:
        self.model, self.progress = model, Progress()
        self.layout: StateLayout = FullLayout(model)
        self.saved_best_step = 0  # ``best_step`` as stored in the newest checkpoint
        prepare_trainable(model, config)
        recompute_blocks(model, config.recompute == "blocks")
        self.optimizers, self.ema = build_optimizers(model, config)
        self.schedule: Schedule = SCHEDULE.build(config.schedule, d_model, steps)
        self.device = next(model.parameters()).device
        self.precision = resolve_precision(config.precision, self.device)
        self.loss_scale = LossScale() if self.precision == "fp16" else None

    def is_finite(self) -> bool:
        """Whether all weights are finite. A weight that is NaN or infinite never becomes finite again."""
        return all(bool(torch.isfinite(get_local(w)).all()) for w in named_state(self.model).values())

    def replace_model(self, model: nn.Module, config: TrainConfig) -> None:
        """Continue with a whole model, newly built, after the last step; nothing else is kept."""
        prepare_trainable(model, config)
        self.model, self.layout = model, FullLayout(model)
        self.optimizers, self.ema = [], None

    def save(self, root: Path, extra: dict[str, str]) -> None:
        """Write checkpoints/step-N. Tied weights are one parameter and are written once."""
        self.write(root, self.export_state(), extra)

    def export_state(self) -> SavedState:
        """All that a checkpoint has of this training, without copies. All ranks call it."""
        tensors = {"model": self.layout.collect(named_state(self.model))}
        state: dict[str, Any] = {"progress": self.progress.to_json(), "optimizers": []}
        state["precision"] = self.precision
        for i, (entries, description) in enumerate(self.layout.flatten_optimizers(self.optimizers)):
            tensors[f"optimizer_{i}"] = entries
            state["optimizers"].append(description)
        if self.ema:
            tensors["ema"] = self.layout.collect(self.ema.weights)
        if self.loss_scale:
            state["loss_scale"] = self.loss_scale.to_json()
        return SavedState(self.progress.step, tensors, state)

    def write(self, root: Path, saved_state: SavedState, extra: dict[str, str]) -> None:
        """Write checkpoints/step-N of an exported state."""
        checkpoint.save_checkpoint(
            root, saved_state.step, saved_state.tensors, saved_state.state, extra=extra
        )
        self.saved_best_step = self.progress.best_step

    def restore(self, saved_checkpoint: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint, bit for bit; all ranks call it if each has a part of the model."""
        weights, tensors = self.layout.weights, saved_checkpoint.tensors
        check_tensors(describe_tensors(tensors["model"]), weights, saved_checkpoint.path)
        copy_into(self.model, tensors["model"], saved_checkpoint.path)
        descriptions = saved_checkpoint.state["optimizers"]
        states = [
            (CheckedTensors(tensors[f"optimizer_{i}"], f"optimizer_{i}", saved_checkpoint.path), description)
            for i, description in enumerate(descriptions)
        ]
        self.layout.load_optimizers(self.optimizers, states)
        if self.ema:
            check_tensors(describe_tensors(tensors["ema"]), weights, saved_checkpoint.path)
            self.ema.load(tensors["ema"], saved_checkpoint.path)
        # absent if the run was saved in another precision
        if self.loss_scale and "loss_scale" in saved_checkpoint.state:
            self.loss_scale.load(saved_checkpoint.state["loss_scale"])
        self.progress = Progress.from_json(saved_checkpoint.state["progress"])
        self.saved_best_step = self.progress.best_step


class CheckedTensors(Mapping[str, Tensor]):
    """Saved tensors, each checked when it is looked up: NaN or an infinite value is a UserError."""

    def __init__(self, tensors: Mapping[str, Tensor], group: str, source: Path) -> None:
        self.tensors, self.group, self.source = tensors, group, source

    def __getitem__(self, name: str) -> Tensor:
        return check_weight(f"{self.group}.{name}", self.tensors[name], self.source)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors  # without a lookup

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def shard_optimizer_tensors(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Saved tensors of an optimizer; one of the shape of its parameter is sharded as it is, one at a time."""
    parameters = [p.detach() for p in list_parameters(optimizer)]
    if isinstance(optimizer, ShardedAdafactor) or not any(map(is_dtensor, parameters)):
        return tensors
    parts: dict[str, Tensor] = {}
    for name, full in tensors.items():
        parameter = parameters[int(name.split("/")[1])]  # state/<number>/<key>
        parts[name] = full
        if full.shape == parameter.shape:  # a copy, as a part can be a view that keeps the whole in memory
            parts[name] = torch.empty_like(parameter, dtype=full.dtype).copy_(shard_like(full, parameter))
        del full
    return parts


def build_optimizers(
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
    return -value if KNOWN_METRICS[metric].lower_is_better else value
