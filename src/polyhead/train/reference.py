"""Log-probabilities of the frozen reference model of a task: computed once, then read from the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from polyhead.config.recipe import Recipe
from polyhead.core.atomic_io import file_exists, read_regular_file
from polyhead.core.errors import UserError
from polyhead.core.output_paths import write_atomic
from polyhead.run.run import Run
from polyhead.train.init_from import load_init_from
from polyhead.train.loss_module import MapFn
from polyhead.train.tasks.preferences import PreferenceTask
from polyhead.train.trainable_parameters import quantize_base

REFERENCE_FILE = "reference.safetensors"
_MAX_BYTES = 1 << 34


def set_references(
    task: PreferenceTask,
    known_values: Mapping[str, Sequence[Sequence[float]]],
    load_model: Callable[[], nn.Module],
    map_fn: MapFn = map,
) -> dict[str, Tensor]:
    """Set the log-probabilities of all splits, and return them: those known for the same texts, else new.

    ``load_model`` is called only if some are new.
    """
    for split, store in task.stores.items():
        n, known = len(task.reference[split]), known_values.get(store.directory.name, ())
        if len(known) >= n:
            task.reference[split] = torch.tensor(known[:n])
            continue
        model = load_model()
        was_training = model.training
        task.reference[split] = task.measure_reference(model.eval(), split, map_fn)
        model.train(was_training)
    return {store.directory.name: task.reference[split] for split, store in task.stores.items()}


def read_reference(directory: Path | None) -> dict[str, list[list[float]]]:
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
    if recipe.train.lora:
        quantize_base(origin.model, recipe.train.lora)
    return origin.model.to(next(run.model.parameters()).device)
