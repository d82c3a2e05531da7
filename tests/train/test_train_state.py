import math
import re

import pytest
import torch
from tests.train.conftest import (
    Toy,
    copy_tensors,
    equal_tensors,
    loop_config,
    never_measured,
    state_tensors,
    train_toy,
    user_error,
)
from torch import nn

from polyhead.checkpoint import checkpoint
from polyhead.train.train_state import TrainState, load_final_weights, periodic_checkpoints

pytestmark = pytest.mark.usefixtures("no_fsync")


def average_checkpoints(root, steps) -> dict:
    weights = [checkpoint.read_checkpoint(root / f"step-{step}").tensors["model"] for step in steps]
    return {name: torch.stack([w[name].double() for w in weights]).mean(0).float() for name in weights[0]}


def assert_close(weights, expected):
    assert all(torch.allclose(w, expected[name], rtol=1e-6, atol=1e-9) for name, w in weights.items())


def test_mean_of_periodic_checkpoints_is_used_if_better(tmp_path):
    # evaluations at 2, 4, ... improve, so there are checkpoints outside of the period of 5 too
    losses = iter(range(99, 0, -1))
    config = loop_config(steps=23, eval_every=2, save_every=5, keep=3, average_checkpoints=3)
    training, _, _ = train_toy(tmp_path, Toy(lambda model: float(next(losses))), config)
    assert periodic_checkpoints(checkpoint.list_steps(tmp_path), config) == [10, 15, 20]
    mean, single = average_checkpoints(tmp_path, [10, 15, 20]), average_checkpoints(tmp_path, [23])

    def distance(a, b):
        return sum(float((w - b[name]).abs().sum()) for name, w in a.items())

    names, gap = ("mean of the checkpoints 10, 15, 20", "checkpoint 23"), distance(mean, single)
    assert gap > 0
    for (best, other), weights in ((names, mean), (names[::-1], single)):
        measure = lambda weights=weights: distance(copy_tensors(training.model.named_parameters()), weights)  # noqa: E731
        description = load_final_weights(training, config, tmp_path, measure).description
        assert description == f"{best} (loss 0.0000; {other}: {gap:.4f})"
        assert_close(copy_tensors(training.model.named_parameters()), weights)


NAMES = ["checkpoint 8", "checkpoint 12", "EMA at step 8", "mean of the checkpoints 4, 8, 12"]


@pytest.mark.parametrize(
    ("values", "metric", "best"),
    [
        ([2.0, 3.0, 1.0, 4.0], "loss", 2),
        ([2.0, 3.0, 4.0, 1.0], "loss", 3),
        ([2.0, 1.0, 4.0, 3.0], "loss", 1),
        ([2.0, 3.0, 1.0, 4.0], "bleu", 3),
        ([2.0, 2.0, 2.0, 2.0], "loss", 0),  # an average must be better than single weights
        ([math.nan, math.inf, math.nan, 5.0], "loss", 3),
        ([2.0, 3.0, math.nan, -math.inf], "bleu", 1),
    ],
)
def test_best_of_single_ema_and_mean_is_used(values, metric, best, tmp_path):
    losses = iter([3.0, 1.0, 2.0])
    config = loop_config(eval_every=4, save_every=4, ema=0.9, keep=3, average_checkpoints=3)
    training, _, _ = train_toy(tmp_path, Toy(lambda model: next(losses)), config)
    candidates, numbers = [], iter(values)

    def measure():
        candidates.append(copy_tensors(training.model.named_parameters()))
        return next(numbers)

    config = config.model_copy(update={"best_metric": metric})
    description = load_final_weights(training, config, tmp_path, measure).description
    assert description.startswith(f"{NAMES[best]} ({metric} {values[best]:.4f}; ")
    numbers = [f"{name}: {value:.4f}" for name, value in zip(NAMES, values, strict=True)]
    assert [number in description for number in numbers] == [i != best for i in range(4)]
    ema = checkpoint.read_checkpoint(tmp_path / "step-8").tensors["ema"]
    single, last, mean = (average_checkpoints(tmp_path, steps) for steps in ([8], [12], [4, 8, 12]))
    for actual, expected in zip(candidates, [single, last, ema, mean], strict=True):
        assert_close(actual, expected)
    assert equal_tensors(copy_tensors(training.model.named_parameters()), candidates[best])


def test_last_weights_are_used_without_finite_evaluation(tmp_path):
    training, _, _ = train_toy(tmp_path, Toy(lambda model: math.nan), loop_config())
    initial_tensors = copy_tensors(state_tensors(training))
    description = load_final_weights(training, loop_config(), tmp_path, never_measured).description
    assert description == "checkpoint 12"
    assert equal_tensors(initial_tensors, state_tensors(training))


def test_checkpoint_of_another_model_is_refused(tmp_path):
    train_toy(tmp_path, Toy(), loop_config(steps=1))
    other = TrainState(nn.Linear(4, 1), loop_config(), 8, 1)
    with user_error(r"does not match: 'bias' is missing; 'weight' is missing; '0\.bias' is unexpected"):
        other.restore(checkpoint.read_checkpoint(tmp_path / "step-1"))


@pytest.mark.parametrize(
    ("group", "name"), [("model", "0.bias"), ("ema", "0.bias"), ("optimizer_0", "state/1/exp_avg")]
)
def test_checkpoint_with_nan_is_refused(group, name, tmp_path):
    training, _, _ = train_toy(tmp_path, Toy(), loop_config(steps=1, ema=0.9))
    saved = checkpoint.read_checkpoint(tmp_path / "step-1")
    saved.tensors[group][name].view(-1)[0] = math.nan
    with user_error(rf"step-1 is damaged: \S*{re.escape(name)} has NaN or an infinite value"):
        training.restore(saved)
