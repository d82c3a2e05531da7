"""Whether the checkpoints of a run fit on its disk, checked before its first step."""

from __future__ import annotations

import shutil
from pathlib import Path

from polyhead.analysis.cost.memory import optimizer_state
from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.models.build import model_class
from polyhead.nn.weights import weights
from polyhead.recipe import TrainConfig
from polyhead.train.learned import prepare
from polyhead.train.training import Training

MB = 1_000_000
MOST_COPIES = 4  # of the weights in a checkpoint: themselves, two of an optimizer, a moving average


def check_room(out: Path, training: Training, config: ModelConfig, train: TrainConfig, steps: int) -> None:
    """A UserError if the checkpoints that a run keeps are larger than what is free, those that are there not counted."""
    free = shutil.disk_usage(out).free
    copies = count_checkpoints(train, steps)
    if free >= MOST_COPIES * weight_bytes(training) * copies:  # no need to know it exactly
        return
    size = checkpoint_bytes(training, config, train)
    needed = size * copies - sum(file.stat().st_size for file in (out / "checkpoints").rglob("*.safetensors"))
    if free >= needed:
        return
    keep = " ".join(["train.keep=1", *(["train.average=0"] if train.average > 1 else [])])
    fewer = f"keep fewer ({keep}), " if copies > 2 else ""
    raise UserError(
        f"{out}: {free / MB:,.1f} MB are free on the disk, and {copies} checkpoint{'s' * (copies > 1)} of {size / MB:,.1f} MB "
        f"need {needed / MB:,.1f} MB: {fewer}save on another disk (out=...), or train a smaller model"
    )


def checkpoint_bytes(training: Training, config: ModelConfig, train: TrainConfig) -> int:
    """Bytes of the tensors of one checkpoint: weights, state of the optimizer, moving average."""
    from polyhead.analysis.cost.weightless import weightless  # slow to import

    own = weight_bytes(training)
    try:
        with weightless():
            model = model_class(config)(config)
            prepare(model, train)
            state = optimizer_state(model, train.optimizer)
    except Exception:  # a part may be anybody's code, and fail on tensors without numbers
        state = 0
    return own + state + (own if train.ema else 0)


def weight_bytes(training: Training) -> int:
    """Bytes of the weights that are saved."""
    return sum(tensor.nbytes for tensor in weights(training.model).values())


def count_checkpoints(train: TrainConfig, steps: int) -> int:
    """Checkpoints that are on the disk at once, at least: those kept and, before the oldest is deleted, a new one."""
    saved = len({*range(train.save_every, steps + 1, train.save_every), steps})
    return min(saved, train.keep + 1)
