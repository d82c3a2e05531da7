import re
from types import SimpleNamespace

import pytest
from tests.train.conftest import user_error

from polyhead import ModelConfig, build
from polyhead.config.recipe import TrainConfig
from polyhead.train import disk_space
from polyhead.train.disk_space import check_disk_space, checkpoint_bytes, count_checkpoints
from polyhead.train.train_state import TrainState

CONFIG = ModelConfig(vocab_size=300, d_model=64, n_heads=2, n_layers=1, max_len=32)


def make_training(config) -> TrainState:
    return TrainState(build(CONFIG, 1), config, CONFIG.d_model, 10)


def take_step(training) -> None:
    for parameter in training.model.parameters():
        parameter.grad = parameter.detach().clone() if parameter.requires_grad else None
    for optimizer in training.optimizers:
        optimizer.step()


@pytest.mark.parametrize(
    "options",
    [{}, {"ema": 0.9}, {"optimizer": "adafactor"}, {"optimizer": "muon"}, {"freeze": ["encoder_embedding"]}],
)
def test_estimate_matches_files_of_a_checkpoint(options, tmp_path):
    config = TrainConfig(steps=10, **options)
    training = make_training(config)
    estimate = checkpoint_bytes(training, CONFIG, config)
    take_step(training)
    training.save(tmp_path, {})
    size = sum(file.stat().st_size for file in tmp_path.glob("step-*/*.safetensors"))
    assert estimate == pytest.approx(size, rel=0.05)  # names of tensors are in the files too


@pytest.mark.parametrize(
    ("keep", "steps", "n"), [(3, 10_000, 4), (3, 1000, 2), (3, 1001, 3), (1, 10_000, 2), (3, 20, 1)]
)
def test_number_of_checkpoints_on_disk(keep, steps, n):
    assert count_checkpoints(TrainConfig(steps=steps, save_every=500, keep=keep), steps) == n


def test_small_disk_is_refused(tmp_path, monkeypatch):
    def check(free):
        monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        check_disk_space(tmp_path, training, CONFIG, config, 100)

    config = TrainConfig(steps=100, save_every=10, keep=3, average_checkpoints=2)
    training = make_training(config)
    size = checkpoint_bytes(training, CONFIG, config)
    mb, free = f"{size / 1e6:,.1f}", f"{4 * size / 1e6:,.1f}"
    message = (
        f"{tmp_path}: {free} MB are free on the disk, and 4 checkpoints of {mb} MB need {free} MB: keep "
    )
    message += "fewer (train.keep=1 train.average_checkpoints=0), save on another disk (out=...), or train a "
    with user_error(re.escape(message)):
        check(4 * size - 1)
    check(4 * size)
    take_step(training)
    training.save(tmp_path / "checkpoints", {})
    check(3 * size)  # one is there already
