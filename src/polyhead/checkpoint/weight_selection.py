"""Which weights of a run's checkpoints are its result: those of one step, or the mean of several."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.checkpoint.checkpoint import (
    Checkpoint,
    list_steps,
    open_lazy_checkpoint,
    read_checkpoint,
    read_state,
)
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_fact

log = logging.getLogger(__name__)


class WeightSelection(NamedTuple):
    """Weights of one checkpoint, or the mean of those of several; group "ema" is the moving average."""

    steps: list[int]
    group: str = "model"

    def __str__(self) -> str:
        if len(self.steps) > 1:
            return f"mean of the checkpoints {', '.join(map(str, self.steps))}"
        return f"EMA at step {self.steps[0]}" if self.group == "ema" else f"checkpoint {self.steps[0]}"

    def load(self, root: Path) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Read and verify the weights from the checkpoints in ``root``, and ``extra`` of the last."""
        tensors, extra = self._open(root, read_checkpoint)
        return dict(tensors), extra

    def open(self, root: Path) -> Mapping[str, Tensor]:
        """As ``load``, but each tensor is read when it is looked up; all are verified before."""
        return self._open(root, open_lazy_checkpoint)[0]

    def _open(
        self, root: Path, read: Callable[[Path], Checkpoint]
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        checkpoints = [read(root / f"step-{step}") for step in self.steps]
        states = [_get_group(saved, self.group) for saved in checkpoints]
        return states[0] if len(states) == 1 else average(states), checkpoints[-1].extra


class _MeanTensors(Mapping[str, Tensor]):
    """Means, each computed when it is looked up."""

    def __init__(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        self.states = states

    def __getitem__(self, name: str) -> Tensor:
        tensors = [state[name] for state in self.states]
        return torch.stack([tensor.double() for tensor in tensors]).mean(0).to(tensors[0].dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.states[0])

    def __len__(self) -> int:
        return len(self.states[0])


def average(states: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    """Mean of each tensor over several states, computed in float64."""
    assert states
    return _MeanTensors(states)


def load_selected(
    root: Path, chosen_weights: WeightSelection | None
) -> tuple[Mapping[str, Tensor], dict[str, Any], str] | None:
    """The weights that are the result of a run, as far as its checkpoints tell; None without a checkpoint.

    ``chosen_weights``, if training ended, else those of the best evaluation, with its moving average if there
    is one, else the newest. Returns the weights, ``extra`` of their checkpoint and a phrase for them.
    Damaged checkpoints are skipped with a warning. No file is deleted: the run may be training.
    """
    if chosen_weights is not None:
        try:
            tensors, extra = chosen_weights.load(root)
            name = translate_fact(str(chosen_weights))
            return tensors, extra, tr("{weights}, which was chosen when training ended", weights=name)
        except UserError as error:
            log.warning("skipping %s, which was chosen when training ended: %s", chosen_weights, error)
    for step in reversed(list_steps(root)):
        try:
            best_step = _best_step(read_state(root / f"step-{step}"))
        except UserError as error:
            log.warning("skipping a damaged checkpoint: %s", error)
            continue
        candidates = [(best_step, "{weights}, that of the best evaluation")] if best_step else []
        candidates += [(step, "{weights}, the newest")] if step != best_step else []
        for candidate, phrase in candidates:
            try:
                saved = read_checkpoint(root / f"step-{candidate}")
            except UserError as error:
                log.warning("skipping a damaged checkpoint: %s", error)
                continue
            selection = WeightSelection([candidate], "ema" if "ema" in saved.tensors else "model")
            name = translate_fact(str(selection))
            return _get_group(saved, selection.group), saved.extra, tr(phrase, weights=name)
    return None


def _best_step(state: Mapping[str, Any]) -> int:
    """The step of the best evaluation until a checkpoint; 0 if there was none."""
    progress = state.get("progress")
    step = progress.get("best_step") if isinstance(progress, dict) else None
    return step if isinstance(step, int) else 0


def _get_group(checkpoint: Checkpoint, group: str) -> Mapping[str, Tensor]:
    if group not in checkpoint.tensors:
        raise UserError(f"{checkpoint.path} has no {group}.safetensors")
    return checkpoint.tensors[group]
