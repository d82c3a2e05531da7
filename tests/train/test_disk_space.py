"""A disk that is too small for a run's checkpoints is reported before its first step."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyhead import ModelConfig, build
from polyhead.config.recipe import TrainConfig
from polyhead.core.errors import UserError
from polyhead.train import disk_space
from polyhead.train.disk_space import check_disk_space, checkpoint_bytes, count_checkpoints
from polyhead.train.train_state import TrainState

CONFIG = ModelConfig(vocab_size=300, d_model=64, n_heads=2, n_layers=1, max_len=32)


def training_of(train: TrainConfig) -> TrainState:
    return TrainState(build(CONFIG, 1), train, CONFIG.d_model, 10)


def take_step(training: TrainState) -> None:
    for parameter in training.model.parameters():
        parameter.grad = parameter.detach().clone() if parameter.requires_grad else None
    for optimizer in training.optimizers:
        optimizer.step()


@pytest.mark.parametrize(
    "keys",
    [{}, {"ema": 0.9}, {"optimizer": "adafactor"}, {"optimizer": "muon"}, {"freeze": ["encoder_embedding"]}],
)
def test_the_bytes_of_a_checkpoint_are_those_of_its_files(keys: dict[str, Any], tmp_path: Path) -> None:
    train = TrainConfig(steps=10, **keys)
    training = training_of(train)
    expected = checkpoint_bytes(training, CONFIG, train)
    take_step(training)
    training.save(tmp_path, {})
    written = sum(file.stat().st_size for file in tmp_path.glob("step-*/*.safetensors"))
    assert expected == pytest.approx(written, rel=0.05)  # the names of tensors are in the files too


@pytest.mark.parametrize(
    ("keys", "steps", "copies"),
    [
        ({"save_every": 500, "keep": 3}, 10_000, 4),
        ({"save_every": 500, "keep": 3}, 1000, 2),
        ({"save_every": 500, "keep": 3}, 1001, 3),
        ({"save_every": 500, "keep": 1}, 10_000, 2),
        ({"save_every": 500, "keep": 3}, 20, 1),
    ],
)
def test_as_many_checkpoints_count_as_are_kept_and_written(
    keys: dict[str, Any], steps: int, copies: int
) -> None:
    assert count_checkpoints(TrainConfig(steps=steps, **keys), steps) == copies


def test_a_small_disk_is_refused_with_megabytes_and_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = TrainConfig(steps=100, save_every=10, keep=3, average_checkpoints=2)
    training = training_of(train)
    size = checkpoint_bytes(training, CONFIG, train)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: SimpleNamespace(free=4 * size - 1))
    with pytest.raises(UserError) as error:
        check_disk_space(tmp_path, training, CONFIG, train, 100)
    mb, free = f"{size / 1e6:,.1f}", f"{4 * size / 1e6:,.1f}"
    assert str(error.value) == (
        f"{tmp_path}: {free} MB are free on the disk, and 4 checkpoints of {mb} MB need {free} MB: keep "
        "fewer (train.keep=1 train.average_checkpoints=0), save on another disk (out=...), or train a "
        "smaller model"
    )
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: SimpleNamespace(free=4 * size))
    check_disk_space(tmp_path, training, CONFIG, train, 100)


def test_checkpoints_that_are_there_need_no_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = TrainConfig(steps=100, save_every=10, keep=3)
    training = training_of(train)
    take_step(training)
    training.save(tmp_path / "checkpoints", {})
    size = checkpoint_bytes(training, CONFIG, train)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * size))
    check_disk_space(tmp_path, training, CONFIG, train, 100)


def test_a_large_disk_is_enough(tmp_path: Path) -> None:
    assert shutil.disk_usage(tmp_path).free > 1e9
    train = TrainConfig(steps=100)
    check_disk_space(tmp_path, training_of(train), CONFIG, train, 100)
