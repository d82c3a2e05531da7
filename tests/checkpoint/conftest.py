"""Fixtures of tests of checkpoints: saved runs to damage, and a directory without slow syncs."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from tests.checkpoint.checkpoint_helpers import make_training_tensors

from polyhead.checkpoint.checkpoint import read_checkpoint, read_newest_checkpoint, save_checkpoint
from polyhead.core.errors import UserError


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    for step in (1, 2):
        tensors, state = make_training_tensors(step), {"step": step, "note": "abc"}
        save_checkpoint(root, step, tensors, state, extra={"tokenizer": "0123"})
    return root


@pytest.fixture
def run_dir(saved_run, tmp_path):
    return Path(shutil.copytree(saved_run, tmp_path / "run"))


@pytest.fixture
def assert_falls_back(run_dir, caplog):
    def check(*words):
        """Step 2 is refused in one line, and step 1 is read with a warning that names step 2."""
        path = str(run_dir / "step-2")
        with pytest.raises(UserError) as error:
            read_checkpoint(run_dir / "step-2")
        for word in (path, *words):
            assert word in str(error.value)
        caplog.clear()
        assert read_newest_checkpoint(run_dir).step == 1
        assert [path in record.getMessage() for record in caplog.records] == [True]

    return check


@pytest.fixture
def memory_dir(tmp_path):
    """A directory in memory, where there is one: a thousand syncs of a disk take minutes."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)
