"""Shared by the tests of checkpoint_corruption."""

import shutil
from pathlib import Path

import pytest
import torch

from polyhead.checkpoint.checkpoint import read_checkpoint, read_newest_checkpoint, save_checkpoint
from polyhead.core.errors import UserError


def content(value: float) -> dict:
    return {
        "model": {"w": torch.full((8, 8), value), "b": torch.zeros(8)},
        "optimizer": {"state/0/exp_avg": torch.full((8, 8), value), "state/0/step": torch.tensor(value)},
        "rng": {"cpu": torch.arange(64, dtype=torch.uint8)},
    }


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pristine")
    for step in (1, 2):
        save_checkpoint(root, step, content(step), {"step": step, "note": "abc"}, extra={"tokenizer": "0123"})
    return root


@pytest.fixture
def run(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "run"))


def falls_back(run: Path, caplog, *words: str) -> None:
    """Step 2 is refused in one line, and step 1 is taken with a warning that names step 2."""
    with pytest.raises(UserError) as error:
        read_checkpoint(run / "step-2")
    for word in (str(run / "step-2"), *words):
        assert word in str(error.value)
    caplog.clear()
    found = read_newest_checkpoint(run)
    assert found is not None
    assert found.step == 1
    assert [str(run / "step-2") in record.getMessage() for record in caplog.records] == [True]
