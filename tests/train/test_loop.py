"""The loop on a task of fourteen rows: exact sums, skipped steps, the rhythm of saving, and what a resume
repeats.
"""

from __future__ import annotations

import errno
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.train.conftest import Notes, Toy, bits, equal, toy_training
from tests.train.loop_helpers import config, run
from torch import nn

from polyhead import ModelConfig, build
from polyhead.checkpoint import checkpoint
from polyhead.config.recipe import TrainConfig
from polyhead.core.errors import UserError
from polyhead.nn.lm_head import Head
from polyhead.nn.loss import Loss, cross_entropy
from polyhead.nn.norm import BatchNorm
from polyhead.nn.state import named_state
from polyhead.train.distributed.process_group import MapFn
from polyhead.train.loop import MAX_SKIPPED, check_memory, derive_seed, total_steps, train_model
from polyhead.train.train_state import TrainState, load_final_weights

pytestmark = pytest.mark.usefixtures("unsynced")


class Catch:
    """An optimiser that keeps the gradients it is given and changes nothing."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.seen = model, []
        self.param_groups = [{"params": list(model.parameters()), "lr": 1.0}]

    def step(self) -> None:
        self.seen.append([p.grad.clone() for p in self.model.parameters()])

    def state_dict(self) -> dict[str, Any]:
        return {}


class Parts:
    """Sentences of several lengths, each epoch one batch after another as they are partitioned."""

    labels = ()

    def __init__(self, parts: list[list[int]]) -> None:
        generator = torch.Generator().manual_seed(2)
        self.parts = parts
        lengths = [1, 2, 3, 3, 5, 8, 8, 9]
        self.rows = [torch.randint(4, 20, (2, n), generator=generator) for n in lengths]

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        return self.parts

    def largest_batch(self) -> list[int]:
        return self.parts[0]

    def collate(self, rows: list[int]) -> list[int]:
        return rows

    def count_labels(self, batch: list[int]) -> int:
        return sum(self.rows[i].shape[1] for i in batch)

    def loss(self, model: nn.Module, batch: list[int]) -> Loss:
        width = max(self.rows[i].shape[1] for i in batch)
        source, target = torch.zeros(2, len(batch), width, dtype=torch.int64)
        pos, labels = torch.full((2, len(batch), width), -1)
        for row, i in enumerate(batch):
            n = self.rows[i].shape[1]
            source[row, :n], target[row, :n] = self.rows[i]
            pos[row, :n], labels[row, :n] = torch.arange(n), self.rows[i][0]
        labels[labels == -1] = -100
        return cross_entropy(model.features(source, target, pos), model.head, labels, 0.1)

    def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]:
        return {"loss": 0.0}


MODEL = build(
    ModelConfig(vocab_size=20, d_model=8, n_heads=2, n_layers=1, d_ff=16, max_len=16, dropout=0.0), seed=3
)


def gradients(parts: list[list[int]], root: Path) -> tuple[list[torch.Tensor], dict[str, float]]:
    settings = config(steps=1, accumulate=len(parts), clip_norm=0, eval_every=1)
    training, notes = TrainState(MODEL, settings, 8, 1), Notes()
    catch = Catch(MODEL)
    training.optimizers = [catch]  # type: ignore[list-item]
    train_model(training, Parts(parts), settings, root, notes)
    return catch.seen[0], notes.rows[0]


@pytest.mark.acceptance("A6")
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(order=st.permutations(range(8)), cuts=st.sets(st.integers(1, 7)))
def test_any_partition_of_a_batch_gives_the_same_gradients(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cuts: set[int]
) -> None:
    root = tmp_path_factory.mktemp("parts")
    whole, row = gradients([list(range(8))], root / "whole")
    edges = [0, *sorted(cuts), 8]
    parts, its_row = gradients([order[a:b] for a, b in pairwise(edges)], root / "parts")
    size = math.sqrt(sum(float(a.square().sum()) for a in whole))
    for a, b in zip(whole, parts, strict=True):  # the bias of the keys has no gradient but rounding
        assert float((a - b).norm()) <= 1e-5 * float(a.norm()) + 1e-8 * size
    for name in ("loss", "ppl", "grad_norm"):
        assert its_row[name] == pytest.approx(row[name], rel=1e-5)


def test_long_gradients_are_clipped_and_short_ones_are_not(tmp_path: Path) -> None:
    for limit, wanted in ((0.05, 0.05), (1e6, None), (0, None)):
        settings = config(steps=1, clip_norm=limit)
        training, notes = toy_training(settings), Notes()
        catch = Catch(training.model)
        training.optimizers = [catch]  # type: ignore[list-item]
        train_model(training, Toy(), settings, tmp_path / str(limit), notes)
        norm = math.sqrt(sum(float(g.square().sum()) for g in catch.seen[0]))
        assert norm == pytest.approx(wanted or notes.rows[0]["grad_norm"], rel=1e-4)
        assert notes.rows[0]["grad_norm"] > 0.05


@pytest.mark.acceptance("A5")
def test_a_batch_without_labels_is_skipped_and_counted(tmp_path: Path) -> None:
    class Empty(Toy):
        def count_labels(self, batch: Any) -> int:
            return 0 if 3 <= len(self.ledger) - 1 < 20 else len(batch)

        def loss(self, model: nn.Module, batch: Any) -> Loss:
            if self.count_labels(batch):
                return super().loss(model, batch)
            features, weight = torch.randn(len(batch), 2, 4), torch.randn(6, 4, requires_grad=True)
            loss = cross_entropy(features, Head(weight), torch.full((len(batch), 2), -100))
            assert (float(loss.total.detach()), loss.count) == (0, 0)
            return loss

    training, outcome, notes = run(tmp_path, Empty(), config(steps=25))
    assert outcome.status == "done"  # even after more of them in a row than the loss may be infinite
    assert training.progress.skipped == 17
    assert training.progress.in_a_row == 0
    assert notes.series("skipped")[-1] == training.progress.skipped
    assert sum("no labels" in line for line in notes.said) == training.progress.skipped
    assert all(torch.isfinite(tensor).all() for tensor in bits(training).values())


class Sick(Toy):
    """A loss that is not finite at some batches (the rehearsal is number 0)."""

    def __init__(self, at: set[int]) -> None:
        super().__init__()
        self.at = at

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        loss = super().loss(model, batch)
        return loss._replace(total=loss.total * math.nan) if len(self.ledger) - 1 in self.at else loss


@pytest.mark.acceptance("A7")
def test_an_update_that_is_not_finite_changes_nothing_and_is_counted(tmp_path: Path) -> None:
    training, outcome, notes = run(tmp_path, Sick({3, 7}), config(save_every=1, keep=50, ema=0.9))
    assert (outcome.status, training.progress.skipped) == ("done", 2)
    assert [line.partition(":")[0] for line in notes.said] == ["step 3", "step 7"]
    # none while it is unknown whether it heals
    assert checkpoint.list_steps(tmp_path) == [1, 2, 4, 5, 6, 8, 9, 10, 11, 12]
    before, after = (toy_training(config(ema=0.9)) for _ in range(2))
    before.restore(checkpoint.read_checkpoint(tmp_path / "step-2"))
    run(tmp_path / "to-3", Sick({3}), config(ema=0.9), stop_at=3)
    after.restore(checkpoint.read_checkpoint(tmp_path / "to-3" / "step-3"))
    assert equal(before, after)


@pytest.mark.acceptance("A7")
def test_a_loss_that_stays_infinite_ends_the_run_at_the_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"not finite for {MAX_SKIPPED} updates in a row, at step 16"
    ) as error:
        run(tmp_path, Sick(set(range(7, 99))), config(steps=50, save_every=2, keep=1))
    # step-6 holds the weights that gave no finite loss ten times: it is gone
    assert f"the last good checkpoint is {tmp_path / 'step-4'}; try a lower train.lr" in str(error.value)
    assert checkpoint.list_steps(tmp_path) == [4]


@pytest.mark.acceptance("A7")
def test_a_diverged_run_names_its_last_good_checkpoint_though_the_bad_one_cannot_be_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def refuse(old: Path, new: Path) -> None:
        if Path(old).name == "step-6":
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(old, new)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(UserError, match=r"the last good checkpoint is .*step-4; try a lower"):
        run(tmp_path, Sick(set(range(7, 99))), config(steps=50, save_every=2, keep=1))
    assert f"could not delete the old checkpoint {tmp_path / 'step-6'}: Permission denied" in caplog.messages


@pytest.mark.acceptance("A7")
def test_a_loss_that_was_never_finite_leaves_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at step 10; no good checkpoint"):
        run(tmp_path, Sick(set(range(99))), config(steps=50, save_every=2, eval_every=2))
    assert checkpoint.list_steps(tmp_path) == []


@pytest.mark.acceptance("A7")
def test_a_short_run_whose_loss_was_never_finite_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not finite for 4 updates in a row, at step 4; no good"):
        run(tmp_path, Sick(set(range(99))), config(steps=4, save_every=2, eval_every=2))
    assert checkpoint.list_steps(tmp_path) == []
    _, outcome, _ = run(tmp_path / "later", Sick({2, 3, 4}), config(steps=4))
    assert (outcome.status, outcome.step) == ("done", 4)


@pytest.mark.acceptance("A7")
def test_weights_that_are_not_finite_are_never_a_checkpoint(tmp_path: Path) -> None:
    settings = config(save_every=1, keep=1)
    training = toy_training(settings)

    def spoil(*_: Any) -> None:
        if training.progress.step == 5:
            next(training.model.parameters()).data[0, 0] = math.inf

    training.optimizers[0].register_step_post_hook(spoil)
    with pytest.raises(
        UserError, match=r"the weights are not finite, at step 5; the last good checkpoint is .*step-4"
    ):
        train_model(training, Toy(), settings, tmp_path, Notes())
    assert checkpoint.list_steps(tmp_path)[-1] == 4


def test_each_step_draws_other_dropout_and_each_seed_too() -> None:
    # torch's CPU generator looks at the low 32 bits of a seed alone
    draws = set()
    for seed, step in [(1, 1), (1, 2), (2, 1), (1, 3), (1 + 2**32, 1), (2, 2**31)]:
        torch.manual_seed(derive_seed(seed, step))
        draws.add(tuple(torch.rand(4).tolist()))
    assert len(draws) == 6


def test_each_step_has_another_mask_and_the_same_seed_the_same_ones(tmp_path: Path) -> None:
    masks: list[list[float]] = []

    class Look(Toy):
        def loss(self, model: nn.Module, batch: Any) -> Loss:
            masks.append(model[1](torch.ones(64)).tolist())
            return super().loss(model, batch)

    a, _, _ = run(tmp_path / "a", Look(), config())
    b, _, _ = run(tmp_path / "b", Look(), config())
    c, _, _ = run(tmp_path / "c", Look(), config(seed=2))
    assert masks[1:13] == masks[14:26]
    assert len({tuple(mask) for mask in masks[1:13] + masks[27:39]}) == 24
    assert equal(a, b)
    assert not equal(a, c)


@pytest.mark.acceptance("B8", "B9", "B11")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_that_is_stopped_at_any_step_goes_on_as_if_it_had_not_been(
    tmp_path: Path, accumulate: int
) -> None:
    settings = config(
        epochs=2.4, steps=None, accumulate=accumulate, ema=0.8, log_every=3, eval_every=4, save_every=5
    )
    steps = total_steps(Toy(), settings)
    assert steps == math.ceil(2.4 * Toy.N_BATCHES / accumulate)
    whole_task = Toy()
    whole, _, notes = run(tmp_path / "whole", whole_task, settings, steps=steps)
    assert len(whole_task.ledger) == 1 + steps * accumulate
    epochs = [whole_task.ledger[1 + 5 * i : 6 + 5 * i] for i in range(2)]
    assert all(sorted(row for batch in epoch for row in batch) == list(range(14)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    for k in range(1, steps + 1):
        first, second = Toy(), Toy()
        _, outcome, early = run(tmp_path / str(k), first, settings, stop_at=k, steps=steps)
        assert (outcome.status, outcome.step) == ("interrupted", k)
        training, outcome, late = run(tmp_path / str(k), second, settings, resume=True, steps=steps)
        assert (outcome.status, outcome.step) == ("done", steps)
        assert first.ledger[1:] + second.ledger[1:] == whole_task.ledger[1:]
        assert equal(training, whole), k
        assert training.progress == whole.progress
        assert timeless(early.rows + late.rows) == timeless(notes.rows)


def timeless(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [
        {k: v for k, v in row.items() if k not in ("tokens_per_s", "ms_per_step", "seconds")} for row in rows
    ]


@pytest.mark.acceptance("B11")
def test_the_rates_are_those_of_the_schedule(tmp_path: Path) -> None:
    _, _, notes = run(tmp_path, Toy(), config())
    wanted = [0.01 * 8**-0.5 * min(s**-0.5, s * 4**-1.5) for s in range(1, 13)]
    assert notes.series("lr") == pytest.approx(wanted, rel=1e-12)


def test_a_measure_that_should_rise_is_best_at_its_top(tmp_path: Path) -> None:
    class Bleu(Toy):
        def evaluate(self, model: nn.Module, map_fn: MapFn = map) -> dict[str, float]:
            return {"loss": 1.0, "bleu": {4: 20.0, 8: 31.0, 12: 30.0}[training.progress.step]}

    settings = config(best_metric="bleu", eval_every=4)
    training, notes = toy_training(settings), Notes()
    train_model(training, Bleu(), settings, tmp_path, notes)
    assert (training.progress.best, training.progress.best_step) == (31.0, 8)
    assert notes.series("best", "valid") == [1.0, 1.0, 0.0]


def test_evaluations_see_the_average_and_leave_the_weights_alone(tmp_path: Path) -> None:
    seen = []

    def look(model: nn.Module) -> float:
        assert not model.training
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return 1.0

    training, _, _ = run(tmp_path, Toy(look), config(ema=0.7))
    assert training.ema is not None
    assert all(torch.equal(seen[-1][name], w) for name, w in training.ema.weights.items())
    plain, _, _ = run(tmp_path / "plain", Toy(), config())
    for a, b in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.acceptance("A8")
def test_the_costliest_batch_is_run_before_anything_is_learned(tmp_path: Path) -> None:
    task = Toy()
    run(tmp_path, task, config(steps=1))
    assert task.ledger[0] == task.largest_batch().tolist()
    with_rehearsal, _, _ = run(tmp_path / "a", Toy(), config())

    class Small(Toy):
        def largest_batch(self) -> np.ndarray:
            return np.arange(1)

    assert equal(with_rehearsal, run(tmp_path / "b", Small(), config())[0])


@pytest.mark.acceptance("A8")
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_a_batch_too_large_for_memory_is_told_before_the_first_step(tmp_path: Path, error: Exception) -> None:
    class Large(Toy):
        def loss(self, model: nn.Module, batch: Any) -> Loss:
            raise error

    message = (
        r"the largest batch does not fit into memory; decrease train.max_tokens \(4096\), data.max_len or"
    )
    with pytest.raises(UserError, match=message + r" the size of the model, or set train.recompute=blocks$"):
        run(tmp_path, Large(), config())
    with pytest.raises(UserError, match=message + " the size of the model$"):
        run(tmp_path / "recomputed", Large(), config(recompute="blocks"))


def test_what_is_no_lack_of_memory_is_not_called_one(tmp_path: Path) -> None:
    class Broken(Toy):
        def loss(self, model: nn.Module, batch: Any) -> Loss:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        run(tmp_path, Broken(), config())


def test_the_end_is_whichever_limit_comes_first() -> None:
    assert total_steps(Toy(), config(steps=7, epochs=2)) == 7
    assert total_steps(Toy(), config(steps=70, epochs=2)) == 10
    assert total_steps(Toy(), config(steps=None, epochs=2, accumulate=3)) == 4
    assert total_steps(Toy(), config(steps=None, epochs=0.01)) == 1


def test_speed_counts_the_labels_of_the_time_since_the_last_row(tmp_path: Path) -> None:
    _, _, notes = run(tmp_path, Toy(), config(log_every=5))
    assert notes.series("step") == [5, 10, 12]
    for row in notes.rows:
        if row["split"] == "train":
            n_steps = 2 if row["step"] == 12 else 5
            labels = row["tokens_per_s"] * row["ms_per_step"] * n_steps / 1e3
            assert labels == pytest.approx(round(labels), rel=1e-6)
            assert 2 * n_steps <= labels <= 4 * n_steps


def norming(settings: TrainConfig) -> TrainState:
    """The toy with a batch norm, whose running statistics are kept beside the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), BatchNorm(8), nn.Tanh(), nn.Linear(8, 1))
    return TrainState(model, settings, 8, settings.steps or 0)


def kept(training: TrainState) -> dict[str, torch.Tensor]:
    """Weights and running statistics, as they are now."""
    return {name: w.detach().clone() for name, w in named_state(training.model).items()}


def test_the_rehearsal_leaves_running_statistics_alone() -> None:
    training = norming(config())
    before = kept(training)
    check_memory(training, Toy(), config())
    assert before.keys() >= {"1.running_mean", "1.running_var"}
    assert all(torch.equal(w, before[name]) for name, w in kept(training).items())


def test_running_statistics_are_saved_resumed_and_averaged_with_the_weights(tmp_path: Path) -> None:
    settings = config(ema=0.9, save_every=4, keep=3, average_checkpoints=3)
    whole = norming(settings)
    train_model(whole, Toy(), settings, tmp_path / "whole", Notes())
    assert not torch.equal(whole.model[1].running_mean, norming(settings).model[1].running_mean)
    stopped = norming(settings)
    train_model(stopped, Toy(), settings, tmp_path / "cut", Notes(), lambda: stopped.progress.step == 5)
    resumed = norming(settings)
    resumed.restore(checkpoint.read_newest_checkpoint(tmp_path / "cut"))
    train_model(resumed, Toy(), settings, tmp_path / "cut", Notes())
    assert all(torch.equal(w, kept(whole)[name]) for name, w in kept(resumed).items())
    assert all(torch.equal(w, whole.ema.weights[name]) for name, w in resumed.ema.weights.items())
    assert not torch.equal(whole.ema.weights["1.running_var"], whole.model[1].running_var)
    saved = [
        checkpoint.read_checkpoint(tmp_path / f"whole/step-{step}").tensors["model"] for step in (4, 8, 12)
    ]
    values = iter([2.0, 3.0, 1.0])  # a checkpoint, its moving average, the mean
    assert (
        len(load_final_weights(whole, settings, tmp_path / "whole", lambda: next(values)).selection.steps) > 1
    )
    wanted = sum(one["1.running_var"].double() for one in saved) / 3
    assert torch.allclose(whole.model[1].running_var.double(), wanted, rtol=1e-6)


def test_statistics_that_are_not_finite_are_never_a_checkpoint() -> None:
    training = norming(config())
    assert training.is_finite()
    training.model[1].running_var[3] = math.nan
    assert not training.is_finite()
