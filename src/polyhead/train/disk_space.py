"""Check before the first step that the checkpoints of a run fit on its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.errors import UserError
from polyhead.cost.memory import optimizer_state_bytes
from polyhead.train.train_state import TrainState
from polyhead.train.trainable_parameters import prepare_trainable

MB = 1_000_000
MAX_COPIES = 4  # upper limit, in a checkpoint: the weights, two optimizer states, a moving average


def check_disk_space(
    out: Path, training: TrainState, config: ModelConfig, train_config: TrainConfig, steps: int
) -> None:
    """Raise a UserError if the checkpoints that a run keeps need more than the free space.

    The space of existing checkpoints counts as free.
    """
    free_bytes = shutil.disk_usage(out).free
    copies = count_checkpoints(train_config, steps)
    if free_bytes >= MAX_COPIES * weight_bytes(training) * copies:  # enough even for the upper limit
        return
    size = checkpoint_bytes(training, config, train_config)
    needed_bytes = size * copies - sum(
        file.stat().st_size for file in (out / "checkpoints").rglob("*.safetensors")
    )
    if free_bytes >= needed_bytes:
        return
    options = " ".join(
        ["train.keep=1", *(["train.average_checkpoints=0"] if train_config.average_checkpoints > 1 else [])]
    )
    hint = f"keep fewer ({options}), " if copies > 2 else ""
    raise UserError(
        f"{out}: {free_bytes / MB:,.1f} MB are free on the disk, and {copies} "
        f"checkpoint{'s' * (copies > 1)} of {size / MB:,.1f} MB need {needed_bytes / MB:,.1f} MB: "
        f"{hint}save on another disk (out=...), or train a smaller model"
    )


def checkpoint_bytes(training: TrainState, config: ModelConfig, train_config: TrainConfig) -> int:
    """Bytes of the tensors of one checkpoint: weights, optimizer state, moving average."""
    from polyhead.cost.fake_tensors import fake_mode, fake_model  # slow to import

    model_bytes = weight_bytes(training)
    try:
        with fake_mode():
            model = fake_model(config)
            prepare_trainable(model, train_config)
            optimizer_bytes = optimizer_state_bytes(model, train_config.optimizer)
    except Exception:  # parts of plugins may fail on fake tensors
        optimizer_bytes = 0
    return model_bytes + optimizer_bytes + (model_bytes if train_config.ema else 0)


def weight_bytes(training: TrainState) -> int:
    """Bytes of the saved weights."""
    return sum(tensor.nbytes for tensor in training.layout.weights.values())


def count_checkpoints(train_config: TrainConfig, steps: int) -> int:
    """Minimum number of checkpoints on the disk at once.

    These are ``keep`` checkpoints and a new one, written before the oldest is deleted.
    """
    n_saved = len({*range(train_config.save_every, steps + 1, train_config.save_every), steps})
    return min(n_saved, train_config.keep + 1)
