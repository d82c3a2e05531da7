"""Training in fp16: gradients that would be rounded to 0 are not, those that overflow are left out, and a
resume repeats it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.conftest import Toy, equal, toy_model
from tests.train.loop_helpers import config as usual
from tests.train.loop_helpers import run
from tests.train.test_loop import Catch
from torch import nn

from polyhead import ModelConfig, build
from polyhead.config.recipe import TrainConfig
from polyhead.core.errors import UserError
from polyhead.nn.loss import Loss, cross_entropy
from polyhead.train.loop import train_step
from polyhead.train.precision import LossScale
from polyhead.train.train_state import TrainState

pytestmark = pytest.mark.usefixtures("unsynced")


def config(**changes: Any) -> TrainConfig:
    return usual(**{"precision": "fp16"} | changes)


class Words:
    """One batch of random tokens."""

    def __init__(self) -> None:
        bits = torch.Generator().manual_seed(2)
        self.source, self.target = torch.randint(4, 20, (2, 6, 9), generator=bits)

    def count_labels(self, batch: Any) -> int:
        return self.target.numel()

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return cross_entropy(model.features(self.source, self.target), model.head, self.source)


def gradients(precision: str) -> dict[str, torch.Tensor]:
    """Those of a model with experts, whose balance has a gradient that comes from no loss."""
    model = build(
        ModelConfig(vocab_size=20, d_model=16, n_heads=2, n_layers=2, d_ff=32, max_len=16, dropout=0.0,
            attention="softmax",
                    feed_forward={"name": "moe", "n_experts": 4, "top_k": 2}), seed=3)  # fmt: skip
    training = TrainState(model, config(precision=precision, clip_norm=0), 16, 1)
    training.optimizers = [Catch(model)]  # type: ignore[list-item]
    training.progress.step = 1
    names = [name for name, _ in model.named_parameters()]
    assert train_step(training, Words(), [0], config(precision=precision, clip_norm=0)) == ""  # type: ignore[arg-type]
    return dict(zip(names, training.optimizers[0].seen[0], strict=True))  # type: ignore[attr-defined]


def test_gradients_are_those_of_fp32_but_for_rounding() -> None:
    wanted, found = gradients("fp32"), gradients("fp16")
    for name, grad in found.items():
        assert grad.dtype is torch.float32
        if name.endswith("balance"):
            assert torch.equal(grad, wanted[name]) and grad.any(), name
        else:
            # of the biases of keys it is 0 but for rounding; processors with AVX512-FP16 add up in fp16 as
            # well
            assert (grad - wanted[name]).norm() < 0.1 * wanted[name].norm() + 5e-5, name
    assert sum(grad.norm() > 5e-3 for grad in wanted.values()) > 30


class Faint(Toy):
    """A loss so small that its gradients are 0 in fp16."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        total = 1e-8 * model(self.x[batch]).sum()
        return Loss(total, total.detach(), len(batch))


@pytest.mark.parametrize("first", [1.0, LossScale.INIT_SCALE])
def test_what_would_be_rounded_to_nothing_is_kept(first: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "INIT_SCALE", first)
    seen = {}
    for precision in ("fp32", "fp16"):
        model, task = toy_model().eval(), Faint()
        training = TrainState(model, config(precision=precision, clip_norm=0), 8, 1)
        training.optimizers = [Catch(model)]  # type: ignore[list-item]
        training.progress.step = 1
        train_step(training, task, [list(range(4))], config(clip_norm=0))
        seen[precision] = training.optimizers[0].seen[0][0]  # type: ignore[attr-defined]
    if first == 1.0:
        assert not seen["fp16"].any() and seen["fp32"].any()
    else:
        torch.testing.assert_close(seen["fp16"], seen["fp32"], rtol=0.01, atol=1e-11)


def test_the_scale_gives_way_and_grows_again() -> None:
    scale, value, good = LossScale(), 2.0**16, 0
    bits = torch.Generator().manual_seed(1)
    events = [True] * 2500 + torch.randint(0, 30, (3000,), generator=bits).bool().tolist() + [False] * 40
    for finite in events:
        told, before = scale.update(finite), value
        good = good + 1 if finite else 0
        if not finite:
            value = max(1.0, value / 2)
        elif good == 2000:
            value, good = value * 2, 0
        assert (scale.value, scale.n_good_steps, told) == (value, good, not finite and before > 1.0)
    assert scale.value == 1.0


def test_gradients_that_overflow_are_left_out_until_they_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: they are no sign of a loss that is lost."""
    monkeypatch.setattr(LossScale, "INIT_SCALE", 2.0**34)
    training, outcome, notes = run(tmp_path, Toy(), config(steps=40))
    assert training.loss_scale is not None
    told = [line.partition(": ")[2] for line in notes.said]
    assert len(told) > 12 and (outcome.status, training.progress.skipped) == ("done", len(told))
    assert told == [
        f"gradients overflow in fp16, so the loss is scaled by {2.0 ** (34 - i):g} from now on; skipped"
        for i in range(1, len(told) + 1)
    ]
    assert training.loss_scale.value == 2.0 ** (34 - len(told))
    assert len(notes.series("loss")) == 40 and notes.series("loss")[-1] > 0


@pytest.mark.acceptance("A7")
def test_a_loss_that_stays_infinite_ends_the_run_in_fp16_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not finite"):
        run(tmp_path, Toy(), config(steps=60, lr=1e20, schedule="constant"))


@pytest.mark.acceptance("B11")
def test_a_run_that_is_stopped_at_any_step_has_its_scale_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LossScale, "INIT_SCALE", 2.0**30)
    monkeypatch.setattr(LossScale, "GROWTH_INTERVAL", 5)
    settings = config(steps=30, ema=0.8)
    whole, _, _ = run(tmp_path / "whole", Toy(), settings)
    assert whole.loss_scale is not None and whole.progress.skipped > 10
    for k in range(1, 30, 3):
        run(tmp_path / str(k), Toy(), settings, stop_at=k)
        again, _, _ = run(tmp_path / str(k), Toy(), settings, resume=True)
        assert again.loss_scale is not None
        assert again.loss_scale.to_json() == whole.loss_scale.to_json()
        assert equal(again, whole), k


def test_a_run_may_go_on_in_another_format(tmp_path: Path) -> None:
    run(tmp_path, Toy(), config(precision="fp32"), stop_at=4)
    training, outcome, _ = run(tmp_path, Toy(), config(), resume=True)
    assert (
        outcome.status == "done" and training.loss_scale is not None and training.loss_scale.n_good_steps > 3
    )
    run(tmp_path / "b", Toy(), config(), stop_at=4)
    assert run(tmp_path / "b", Toy(), config(precision="fp32"), resume=True)[0].loss_scale is None
