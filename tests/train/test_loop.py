import errno
import math
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.train.conftest import (
    Notes,
    Toy,
    copy_tensors,
    equal_states,
    equal_tensors,
    loop_config,
    state_tensors,
    toy_training,
    train,
    train_toy,
    user_error,
    without_clock,
)
from torch import nn

from polyhead import ModelConfig, build
from polyhead.checkpoint import checkpoint
from polyhead.core.errors import UserError
from polyhead.nn.embedding import Head
from polyhead.nn.loss import Loss, cross_entropy
from polyhead.nn.norm import BatchNorm
from polyhead.nn.state import named_state
from polyhead.train.loop import MAX_SKIPPED, check_memory, derive_seed, total_steps
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState, load_final_weights

pytestmark = pytest.mark.usefixtures("no_fsync")


class GradientCatcher:
    """An optimizer that keeps the gradients it gets and changes nothing."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.grads = model, []
        self.param_groups = [{"params": list(model.parameters()), "lr": 1.0}]

    def step(self) -> None:
        self.grads.append([p.grad.clone() for p in self.model.parameters()])

    def zero_grad(self) -> None:
        self.model.zero_grad()

    def state_dict(self) -> dict:
        return {}


class PartitionTask:
    labels = ()

    def __init__(self, parts: list[list[int]]) -> None:
        generator = torch.Generator().manual_seed(2)
        self.parts = parts
        self.rows = [torch.randint(4, 20, (2, n), generator=generator) for n in (1, 2, 3, 3, 5, 8, 8, 9)]

    def epoch_batches(self, epoch):
        return self.parts

    def largest_batch(self):
        return self.parts[0]

    def collate(self, rows):
        return rows

    def count_labels(self, batch):
        return sum(self.rows[i].shape[1] for i in batch)

    def loss(self, model, batch) -> Loss:
        width = max(self.rows[i].shape[1] for i in batch)
        source, target = torch.zeros(2, len(batch), width, dtype=torch.int64)
        pos, labels = torch.full((2, len(batch), width), -1)
        for row, i in enumerate(batch):
            n = self.rows[i].shape[1]
            source[row, :n], target[row, :n] = self.rows[i]
            pos[row, :n], labels[row, :n] = torch.arange(n), self.rows[i][0]
        labels[labels == -1] = -100
        return cross_entropy(model.features(source, target, pos), model.head, labels, 0.1)

    def evaluate(self, model, map_fn=map):
        return {"loss": 0.0}


MODEL = build(
    ModelConfig(vocab_size=20, d_model=8, n_heads=2, n_layers=1, d_ff=16, max_len=16, dropout=0.0), seed=3
)


def catch_gradients(training, task, config, root):
    catcher, notes = GradientCatcher(training.model), Notes()
    training.optimizers = [catcher]
    train(training, task, config, root, notes)
    return catcher.grads[0], notes.rows[0]


@pytest.mark.acceptance("A6")
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(order=st.permutations(range(8)), cuts=st.sets(st.integers(1, 7)))
def test_gradients_do_not_depend_on_accumulation(tmp_path_factory, order, cuts):
    def sum_gradients(parts):
        config = loop_config(steps=1, accumulate=len(parts), clip_norm=0, eval_every=1)
        task, root = PartitionTask(parts), tmp_path_factory.mktemp("parts")
        return catch_gradients(TrainState(MODEL, config, 8, 1), task, config, root)

    expected, expected_row = sum_gradients([list(range(8))])
    edges = [0, *sorted(cuts), 8]
    actual, row = sum_gradients([order[a:b] for a, b in pairwise(edges)])
    size = math.sqrt(sum(float(a.square().sum()) for a in expected))
    for a, b in zip(expected, actual, strict=True):  # the bias of keys has no gradient but rounding
        assert float((a - b).norm()) <= 1e-5 * float(a.norm()) + 1e-8 * size
    for name in ("loss", "ppl", "grad_norm"):
        assert row[name] == pytest.approx(expected_row[name], rel=1e-5)


def test_clip_norm_limits_long_gradients_only(tmp_path):
    for limit, expected in ((0.05, 0.05), (1e6, None), (0, None)):
        config = loop_config(steps=1, clip_norm=limit)
        grads, row = catch_gradients(toy_training(config), Toy(), config, tmp_path / str(limit))
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        assert norm == pytest.approx(expected or row["grad_norm"], rel=1e-4)
        assert row["grad_norm"] > 0.05


@pytest.mark.acceptance("A5")
def test_batch_without_labels_is_skipped(tmp_path):
    class EmptyBatches(Toy):
        def count_labels(self, batch):
            return 0 if 3 <= len(self.ledger) - 1 < 20 else len(batch)

        def loss(self, model, batch):
            if self.count_labels(batch):
                return super().loss(model, batch)
            features, weight = torch.randn(len(batch), 2, 4), torch.randn(6, 4, requires_grad=True)
            loss = cross_entropy(features, Head(weight), torch.full((len(batch), 2), -100))
            assert (float(loss.total.detach()), loss.count) == (0, 0)
            return loss

    training, outcome, notes = train_toy(tmp_path, EmptyBatches(), loop_config(steps=25))
    assert outcome.status == "done"  # more in a row than the loss may be infinite
    assert (training.progress.skipped, training.progress.consecutive_skips) == (17, 0)
    assert notes.series("skipped")[-1] == 17
    assert sum("no labels" in line for line in notes.lines) == 17
    assert all(torch.isfinite(tensor).all() for tensor in state_tensors(training).values())


class NaNTask(Toy):
    """The loss is NaN at some batches (number 0 is that of the memory check)."""

    def __init__(self, at) -> None:
        super().__init__()
        self.at = set(at)

    def loss(self, model, batch) -> Loss:
        loss = super().loss(model, batch)
        return loss._replace(total=loss.total * math.nan) if len(self.ledger) - 1 in self.at else loss


@pytest.mark.acceptance("A7")
def test_update_not_finite_is_skipped_and_counted(tmp_path):
    config = loop_config(save_every=1, keep=50, ema=0.9)
    training, outcome, notes = train_toy(tmp_path, NaNTask({3, 7}), config)
    assert (outcome.status, training.progress.skipped) == ("done", 2)
    assert [line.partition(":")[0] for line in notes.lines] == ["step 3", "step 7"]
    # no checkpoint while it is unknown whether the loss recovers
    assert checkpoint.list_steps(tmp_path) == [1, 2, 4, 5, 6, 8, 9, 10, 11, 12]
    initial_state, final_state = (toy_training(loop_config(ema=0.9)) for _ in range(2))
    initial_state.restore(checkpoint.read_checkpoint(tmp_path / "step-2"))
    train_toy(tmp_path / "to-3", NaNTask({3}), loop_config(ema=0.9), stop_at=3)
    final_state.restore(checkpoint.read_checkpoint(tmp_path / "to-3" / "step-3"))
    assert equal_states(initial_state, final_state)


@pytest.mark.acceptance("A7")
@pytest.mark.parametrize("is_deletable", [True, False])
def test_diverged_run_names_last_good_checkpoint(is_deletable, tmp_path, caplog, monkeypatch):
    rename = os.rename

    def refuse(old, new):
        if Path(old).name == "step-6" and not is_deletable:
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(old, new)

    monkeypatch.setattr(os, "rename", refuse)
    with user_error(rf"not finite for {MAX_SKIPPED} updates in a row, at step 16") as error:
        train_toy(tmp_path, NaNTask(range(7, 99)), loop_config(steps=50, save_every=2, keep=1))
    # step-6 holds the weights that gave no finite loss ten times
    assert f"the last good checkpoint is {tmp_path / 'step-4'}; try a lower train.lr" in str(error.value)
    message = f"could not delete the old checkpoint {tmp_path / 'step-6'}: Permission denied"
    assert (message in caplog.messages) is not is_deletable
    assert not is_deletable or checkpoint.list_steps(tmp_path) == [4]


@pytest.mark.acceptance("A7")
@pytest.mark.parametrize(
    ("steps", "message"),
    [(50, "at step 10; no good checkpoint"), (4, "not finite for 4 updates in a row, at step 4; no good")],
)
def test_loss_never_finite_leaves_no_checkpoint(steps, message, tmp_path):
    with user_error(message):
        train_toy(tmp_path, NaNTask(range(99)), loop_config(steps=steps, save_every=2, eval_every=2))
    assert checkpoint.list_steps(tmp_path) == []
    _, outcome, _ = train_toy(tmp_path, NaNTask({2, 3, 4}), loop_config(steps=4))  # one update is finite
    assert (outcome.status, outcome.step) == ("done", 4)


@pytest.mark.acceptance("A7")
def test_weights_not_finite_are_not_saved(tmp_path):
    config = loop_config(save_every=1, keep=1)
    training = toy_training(config)

    def break_weights(*_):
        if training.progress.step == 5:
            next(training.model.parameters()).data[0, 0] = math.inf

    training.optimizers[0].register_step_post_hook(break_weights)
    with user_error(r"the weights are not finite, at step 5; the last good checkpoint is .*step-4"):
        train(training, Toy(), config, tmp_path, Notes())
    assert checkpoint.list_steps(tmp_path)[-1] == 4


def test_seeds_of_steps_differ_in_their_low_bits():
    # torch's CPU generator reads only the low 32 bits of a seed
    draws = set()
    for seed, step in [(1, 1), (1, 2), (2, 1), (1, 3), (1 + 2**32, 1), (2, 2**31)]:
        torch.manual_seed(derive_seed(seed, step))
        draws.add(tuple(torch.rand(4).tolist()))
    assert len(draws) == 6


def test_dropout_masks_follow_from_seed_and_step(tmp_path):
    masks = []

    class MaskNotingTask(Toy):
        def loss(self, model, batch):
            masks.append(model[1](torch.ones(64)).tolist())
            return super().loss(model, batch)

    a, b, c = (
        train_toy(tmp_path / str(i), MaskNotingTask(), loop_config(seed=seed))[0]
        for i, seed in enumerate((1, 1, 2))
    )
    assert masks[1:13] == masks[14:26]
    assert len({tuple(mask) for mask in masks[1:13] + masks[27:39]}) == 24
    assert equal_states(a, b)
    assert not equal_states(a, c)


@pytest.mark.acceptance("B8", "B9", "B11")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_stopped_run_resumes_bit_for_bit(accumulate, tmp_path):
    intervals = {"log_every": 3, "eval_every": 4, "save_every": 5}
    config = loop_config(epochs=2.4, steps=None, accumulate=accumulate, ema=0.8, **intervals)
    steps = total_steps(Toy(), config)
    assert steps == math.ceil(2.4 * Toy.N_BATCHES / accumulate)
    task = Toy()
    expected, _, notes = train_toy(tmp_path / "all", task, config, steps=steps)
    assert len(task.ledger) == 1 + steps * accumulate
    epochs = [task.ledger[1 + 5 * i : 6 + 5 * i] for i in range(2)]
    assert all(sorted(row for batch in epoch for row in batch) == list(range(14)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    for k in range(1, steps + 1):
        first, second = Toy(), Toy()
        _, outcome, early_notes = train_toy(tmp_path / str(k), first, config, stop_at=k, steps=steps)
        assert (outcome.status, outcome.step) == ("interrupted", k)
        training, outcome, late_notes = train_toy(tmp_path / str(k), second, config, resume=True, steps=steps)
        assert (outcome.status, outcome.step) == ("done", steps)
        assert first.ledger[1:] + second.ledger[1:] == task.ledger[1:]
        assert equal_states(training, expected), k
        assert training.progress == expected.progress
        assert without_clock(early_notes.rows + late_notes.rows) == without_clock(notes.rows)


def test_best_metric_that_increases(tmp_path):
    class BleuTask(Toy):
        def evaluate(self, model, map_fn=map):
            return {"loss": 1.0, "bleu": {4: 20.0, 8: 31.0, 12: 30.0}[training.progress.step]}

    config = loop_config(best_metric="bleu", eval_every=4)
    training, notes = toy_training(config), Notes()
    train(training, BleuTask(), config, tmp_path, notes)
    assert (training.progress.best, training.progress.best_step) == (31.0, 8)
    assert notes.series("best", "valid") == [1.0, 1.0, 0.0]


def test_evaluation_uses_ema_and_restores_weights(tmp_path):
    weights = []

    def note_weights(model):
        assert not model.training
        weights.append(copy_tensors(model.named_parameters()))
        return 1.0

    training, _, _ = train_toy(tmp_path, Toy(note_weights), loop_config(ema=0.7))
    assert training.ema and equal_tensors(training.ema.weights, weights[-1])
    plain, _, _ = train_toy(tmp_path / "plain", Toy(), loop_config())
    assert equal_tensors(*(dict(t.model.named_parameters()) for t in (training, plain)))


@pytest.mark.acceptance("A8")
def test_memory_check_does_not_change_training(tmp_path):
    class SmallBatch(Toy):
        def largest_batch(self):
            return np.arange(1)

    task = Toy()
    a, _, _ = train_toy(tmp_path / "a", task, loop_config())
    assert task.ledger[0] == task.largest_batch().tolist()
    assert equal_states(a, train_toy(tmp_path / "b", SmallBatch(), loop_config())[0])


@pytest.mark.acceptance("A8")
def test_batch_too_large_for_memory_is_an_error(tmp_path):
    class FailingTask(Toy):
        def loss(self, model, batch):
            raise self.error

    task, message = FailingTask(), "the largest batch does not fit into memory; decrease train.max_tokens "
    message += r"\(4096\), data.max_len or the size of the model"
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")):
        task.error = error
        with user_error(message + r", or set train.recompute=blocks$"):
            train_toy(tmp_path, task, loop_config())
        with user_error(message + "$"):
            train_toy(tmp_path, task, loop_config(recompute="blocks"))
    task.error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1"):
        train_toy(tmp_path, task, loop_config())


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"steps": 7, "epochs": 2}, 7),
        ({"steps": 70, "epochs": 2}, 10),
        ({"steps": None, "epochs": 2, "accumulate": 3}, 3),  # of 10 batches
        ({"steps": None, "epochs": 1, "accumulate": 5}, 1),
        ({"steps": None, "epochs": 0.01}, 1),
    ],
)
def test_total_steps_is_the_smaller_limit(limits, expected):
    assert total_steps(Toy(), loop_config(**limits)) == expected


def test_fewer_batches_than_an_update_are_refused():
    config = loop_config(steps=None, epochs=1, accumulate=6)
    message = (
        "accumulate is 6, and train.epochs=1 has 5 batches.*accumulate to 5 or less, or epochs to 2 or more"
    )
    with pytest.raises(UserError, match=message):
        total_steps(Toy(), config)


def test_rows_have_rates_and_labels_since_last_row(tmp_path):
    _, _, notes = train_toy(tmp_path, Toy(), loop_config(log_every=5))
    assert notes.series("step") == [5, 10, 12]
    rates = [0.01 * 8**-0.5 * min(s**-0.5, s * 4**-1.5) for s in (5, 10, 12)]
    assert notes.series("lr") == pytest.approx(rates, rel=1e-12)
    for row in [row for row in notes.rows if row["split"] == "train"]:
        n_steps = 2 if row["step"] == 12 else 5
        labels = row["tokens_per_s"] * row["ms_per_step"] * n_steps / 1e3
        assert labels == pytest.approx(round(labels), rel=1e-6)
        assert 2 * n_steps <= labels <= 4 * n_steps


def batch_norm_training(config) -> TrainState:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), BatchNorm(8), nn.Tanh(), nn.Linear(8, 1))
    return TrainState(model, config, 8, config.steps or 0)


def test_memory_check_restores_running_statistics():
    training = batch_norm_training(loop_config())
    initial_state = copy_tensors(named_state(training.model))
    check_memory(training, parallelize(training, Toy(), loop_config()), loop_config())
    assert initial_state.keys() >= {"1.running_mean", "1.running_var"}
    assert equal_tensors(initial_state, named_state(training.model))
    assert training.is_finite()
    training.model[1].running_var[3] = math.nan
    assert not training.is_finite()


def test_running_statistics_are_saved_resumed_and_averaged(tmp_path):
    config = loop_config(ema=0.9, save_every=4, keep=3, average_checkpoints=3)
    expected, stopped, resumed = (batch_norm_training(config) for _ in range(3))
    initial_mean = expected.model[1].running_mean.clone()
    train(expected, Toy(), config, tmp_path / "all", Notes())
    assert not torch.equal(expected.model[1].running_mean, initial_mean)
    train(stopped, Toy(), config, tmp_path / "cut", Notes(), lambda: stopped.progress.step == 5)
    resumed.restore(checkpoint.read_newest_checkpoint(tmp_path / "cut"))
    train(resumed, Toy(), config, tmp_path / "cut", Notes())
    assert equal_tensors(named_state(resumed.model), named_state(expected.model))
    assert equal_tensors(resumed.ema.weights, expected.ema.weights)
    assert not torch.equal(expected.ema.weights["1.running_var"], expected.model[1].running_var)
    losses = iter([2.0, 3.0, 1.0])  # a checkpoint, its moving average, the mean
    final = load_final_weights(expected, config, tmp_path / "all", lambda: next(losses))
    assert len(final.selection.steps) > 1
    states = [checkpoint.read_checkpoint(tmp_path / f"all/step-{step}").tensors for step in (4, 8, 12)]
    mean = sum(tensors["model"]["1.running_var"].double() for tensors in states) / 3
    assert torch.allclose(expected.model[1].running_var.double(), mean, rtol=1e-6)
