"""Log-probabilities of the frozen reference model of a task: computed once, then read from the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import file_exists, read_regular_file
from polyhead.core.errors import UserError
from polyhead.core.output_paths import write_atomic
from polyhead.run.run import Run
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.init_from import load_init_from

REFERENCE_FILE = "reference.safetensors"
_MAX_BYTES = 1 << 34


@runtime_checkable
class HasReference(Protocol):
    """A task whose loss compares the model with a frozen one."""

    stores: Mapping[str, Any]

    @property
    def remarks(self) -> Mapping[str, str]:
        """What its measures mean."""
        ...

    def measure_reference(self, model: nn.Module, split: str, map_fn: MapFn = map) -> Mapping[str, Tensor]:
        """Log-probabilities of a split."""
        ...

    def set_reference(self, split: str, log_probs: Mapping[str, Tensor]) -> None:
        """Set the result of ``measure_reference``."""
        ...


def set_references(
    task: HasReference,
    known_values: Mapping[str, Sequence[float]],
    load_model: Callable[[], nn.Module],
    map_fn: MapFn = map,
) -> dict[str, Tensor]:
    """Set the log-probabilities of all splits, and return them: those known for the same texts, else new.

    ``load_model`` is called only if some are new.
    """
    references: dict[str, Tensor] = {}
    for split, store in task.stores.items():
        prefix = f"{store.directory.name}/"
        log_probs: Mapping[str, Tensor] = {
            name.removeprefix(prefix): torch.tensor(values)
            for name, values in known_values.items()
            if name.startswith(prefix)
        }
        if not log_probs:
            model = load_model()
            was_training = model.training
            log_probs = task.measure_reference(model.eval(), split, map_fn)
            model.train(was_training)
        task.set_reference(split, log_probs)
        references |= {prefix + name: tensor for name, tensor in log_probs.items()}
    return references


def read_reference(directory: Path | None) -> dict[str, list[float]]:
    """The log-probabilities of a run directory; none if it has none. A damaged file is a UserError."""
    path = directory and directory / REFERENCE_FILE
    if path is None or not file_exists(path):
        return {}
    try:
        tensors = load(read_regular_file(path, max_bytes=_MAX_BYTES))
        return {name: tensor.tolist() for name, tensor in tensors.items()}
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def write_reference(directory: Path, references: Mapping[str, Tensor]) -> None:
    """Write the log-probabilities to a run directory."""
    write_atomic(directory / REFERENCE_FILE, save(dict(references)))


def refuse_new_reference() -> nn.Module:
    """Raise a UserError for a resumed run without its log-probabilities."""
    raise UserError(
        f"{REFERENCE_FILE} is missing in the run or belongs to other texts, and its weights have changed: "
        "start again in another directory (out=...)"
    )


def load_reference_model(recipe: Recipe, run: Run) -> nn.Module:
    """The model that a run was started from, for texts that are not in its file."""
    origin = load_init_from(recipe)
    assert origin is not None and recipe.init_from  # the task requires it
    if recipe.init_from.layer_stride > 1:
        raise UserError("init_from.layer_stride: texts outside of the recipe are compared with a whole model")
    return origin.model.to(next(run.model.parameters()).device)
