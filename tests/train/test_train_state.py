"""Tests of train/train_state.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tests.train.conftest import Toy, bits
from tests.train.loop_helpers import config, run, unmeasured
from torch import Tensor, nn

from polyhead.checkpoint import checkpoint
from polyhead.core.errors import UserError
from polyhead.train.train_state import TrainState, load_final_weights, periodic_checkpoints

pytestmark = pytest.mark.usefixtures("unsynced")


def averaged(place: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    several = [checkpoint.read_checkpoint(place / f"step-{step}").tensors["model"] for step in steps]
    return {name: torch.stack([one[name].double() for one in several]).mean(0).float() for name in several[0]}


def test_the_last_regular_checkpoints_are_averaged_where_the_mean_is_better(tmp_path: Path) -> None:
    # evaluations at 2, 4, ... get ever better, so there are checkpoints off the rhythm of 5 as well
    falling = iter(range(99, 0, -1))
    settings = config(steps=23, eval_every=2, save_every=5, keep=3, average_checkpoints=3)
    training, _, _ = run(tmp_path, Toy(lambda model: float(next(falling))), settings)
    assert periodic_checkpoints(checkpoint.list_steps(tmp_path), settings) == [10, 15, 20]
    mean, single = averaged(tmp_path, [10, 15, 20]), averaged(tmp_path, [23])

    def distance(wanted: dict[str, Tensor]) -> Callable[[], float]:
        return lambda: sum(float((p.detach() - wanted[name]).abs().sum()) for name,
            p in training.model.named_parameters())  # fmt: skip

    said = load_final_weights(training, settings, tmp_path, distance(mean)).description
    far = distance(single)()
    assert said == f"mean of the checkpoints 10, 15, 20 (loss 0.0000; checkpoint 23: {far:.4f})"
    assert far > 0
    for name, p in training.model.named_parameters():
        assert torch.allclose(p, mean[name], rtol=1e-6, atol=1e-9)

    said = load_final_weights(training, settings, tmp_path, distance(single)).description
    assert said == f"checkpoint 23 (loss 0.0000; mean of the checkpoints 10, 15, 20: {far:.4f})"
    assert all(torch.equal(p, single[name]) for name, p in training.model.named_parameters())


@pytest.mark.parametrize(
    ("values", "metric", "chosen"),
    [
        ([2.0, 3.0, 1.0, 4.0], "loss", "EMA at step 8"),
        ([2.0, 3.0, 4.0, 1.0], "loss", "mean of the checkpoints 4, 8, 12"),
        ([2.0, 1.0, 4.0, 3.0], "loss", "checkpoint 12"),
        ([2.0, 3.0, 1.0, 4.0], "bleu", "mean of the checkpoints 4, 8, 12"),
        ([2.0, 2.0, 2.0, 2.0], "loss", "checkpoint 8"),  # an average is not better where it is as good
        ([math.nan, math.inf, math.nan, 5.0], "loss", "mean of the checkpoints 4, 8, 12"),
        ([2.0, 3.0, math.nan, -math.inf], "bleu", "checkpoint 12"),
    ],
)
def test_the_best_of_single_weights_ema_and_mean_is_kept(
    values: list[float], metric: str, chosen: str, tmp_path: Path
) -> None:
    losses = iter([3.0, 1.0, 2.0])
    settings = config(eval_every=4, save_every=4, ema=0.9, keep=3, average_checkpoints=3)
    training, _, _ = run(tmp_path, Toy(lambda model: next(losses)), settings)
    names = ["checkpoint 8", "checkpoint 12", "EMA at step 8", "mean of the checkpoints 4, 8, 12"]
    seen, numbers = [], iter(values)

    def measure() -> float:
        seen.append({name: p.detach().clone() for name, p in training.model.named_parameters()})
        return next(numbers)

    said = load_final_weights(
        training, settings.model_copy(update={"best_metric": metric}), tmp_path, measure
    ).description
    assert said.startswith(f"{chosen} ({metric} {values[names.index(chosen)]:.4f}; ")
    assert all(f"{name}: {value:.4f}" in said for name, value in zip(names, values,
        strict=True) if name != chosen)  # fmt: skip
    ema = checkpoint.read_checkpoint(tmp_path / "step-8").tensors["ema"]
    wanted = [averaged(tmp_path, [8]), averaged(tmp_path, [12]), ema, averaged(tmp_path, [4, 8, 12])]
    for one, other in zip(seen, wanted, strict=True):
        assert all(torch.allclose(tensor, other[name], rtol=1e-6, atol=1e-9) for name, tensor in one.items())
    kept = seen[names.index(chosen)]
    assert all(torch.equal(p, kept[name]) for name, p in training.model.named_parameters())


def test_without_a_finite_evaluation_the_last_weights_are_kept(tmp_path: Path) -> None:
    training, _, _ = run(tmp_path, Toy(lambda model: math.nan), config())
    last = bits(training)
    assert load_final_weights(training, config(), tmp_path, unmeasured).description == "checkpoint 12"
    assert all(torch.equal(last[name], tensor) for name, tensor in bits(training).items())


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    run(tmp_path, Toy(), config(steps=1))
    other = TrainState(nn.Linear(4, 1), config(), 8, 1)
    with pytest.raises(
        UserError, match=r"does not match: 'bias' is missing; 'weight' is missing; '0\.bias' is unexpected"
    ):
        other.restore(checkpoint.read_checkpoint(tmp_path / "step-1"))
