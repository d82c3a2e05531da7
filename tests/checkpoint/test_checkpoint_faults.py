import copy
import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from tests.checkpoint.checkpoint_helpers import list_leftovers, make_filled_tensors, read_filled_value

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import (
    SaveError,
    list_steps,
    prune_steps,
    read_checkpoint,
    read_newest_checkpoint,
    save_checkpoint,
)
from polyhead.config.recipe import TrainConfig
from polyhead.core import atomic_io
from polyhead.train.loop import _save_checkpoint
from polyhead.train.strategies.parallelize import parallelize
from polyhead.train.train_state import TrainState, load_final_weights

OPERATIONS = {"open", "write", "fsync", "rename", "unlink", "rmdir", "mkdir", "listdir", "lstat"}
CLEANING = {"unlink", "rmdir", "listdir", "lstat"}


class FaultyOs:
    """The ``os`` module, but ``fault(name, n)`` is called before the n-th file operation."""

    def __init__(self, fault):
        self.fault = fault
        self.count = 0
        self.names: list[str] = []

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in OPERATIONS:
            return real

        def call(*args, **kwargs):
            self.count += 1
            self.names.append(name)
            if name == "write" and len(args[1]) > 1:
                # a write is torn in two, so that a fault can fall between the halves
                size = real(args[0], args[1][: len(args[1]) // 2])
                self.fault(name, self.count)
                return size
            self.fault(name, self.count)
            return real(*args, **kwargs)

        return call


@pytest.fixture
def inject(monkeypatch):
    def use(fault):
        faulty = FaultyOs(fault)
        for module in (atomic_io, checkpoint):
            monkeypatch.setattr(module, "os", faulty)
        return faulty

    yield use
    monkeypatch.undo()


def save(root, step, value):
    save_checkpoint(root, step, make_filled_tensors(value), {"value": value})


def read_newest_value(root):
    return read_filled_value(read_newest_checkpoint(root))


def save_and_prune(root):
    save(root, 2, 2.0)
    prune_steps(root, 1)


SAVES = {"new step": lambda root: save(root, 2, 2.0), "same step": lambda root: save(root, 1, 2.0)}
SAVES["new step and pruning"] = save_and_prune


class SimulatedKill(BaseException):
    """Ends a save; no file operation after it is made."""


def is_complete_before(n, inject, function):
    """Whether a function returns before its n-th file operation, where it is killed."""

    def kill(name, count):
        if count >= n:
            raise SimulatedKill

    faulty = inject(kill)
    try:
        function()
    except SimulatedKill:
        return False
    finally:
        faulty.fault = lambda name, count: None
    return True


FULL_DISK = r"No space left on device; \d+ bytes are needed and \d+ are free"


@pytest.mark.acceptance("B1", "B5", "R2")
@pytest.mark.parametrize("kind", ["same step", "new step and pruning"])
def test_kill_at_any_operation_leaves_the_committed_checkpoint(memory_dir, inject, kind):
    for n in range(1, 1000):
        root = memory_dir / str(n)
        save(root, 1, 1.0)
        if is_complete_before(n, inject, lambda root=root: SAVES[kind](root)):
            break
        newest = read_newest_checkpoint(root)
        assert read_filled_value(newest) in {1.0, 2.0}
        assert newest.step == (2 if (root / "step-2").exists() else 1)
        for step in list_steps(root):
            assert read_checkpoint(root / f"step-{step}").step == step
        assert not list_leftovers(root)
        save(root, 3, 3.0)
        assert read_newest_value(root) == 3.0
        shutil.rmtree(root)
    assert n > 30 and read_newest_value(root) == 2.0


@pytest.mark.acceptance("B5")
@pytest.mark.parametrize("improves", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_kill_during_rotation_leaves_newest_and_best(memory_dir, inject, improves):
    """Saving deletes old checkpoints first; the best step that the newest names is there at any time."""
    config = TrainConfig(steps=9, keep=1)

    def make_training():
        torch.manual_seed(1)
        return TrainState(torch.nn.Linear(2, 2), config, 2, 9)

    def reach(training, step, is_better, root):
        training.progress.step = step
        training.progress.record_evaluation(1.0 / step if is_better else 9.0, False)
        _save_checkpoint(training, parallelize(training, None, config), config, root, {})

    first_steps, training = memory_dir / "first", make_training()
    reach(training, 1, True, first_steps)
    reach(training, 2, False, first_steps)
    steps = set()
    for n in range(1, 1000):
        root = Path(shutil.copytree(first_steps, memory_dir / str(n)))
        killed_training = copy.deepcopy(training)
        is_complete = is_complete_before(
            n, inject, lambda t=killed_training, root=root: reach(t, 3, improves, root)
        )
        newest = read_newest_checkpoint(root)
        best_step = newest.state["progress"]["best_step"]
        assert best_step == (3 if improves and newest.step == 3 else 1)
        assert read_checkpoint(root / f"step-{best_step}").step == best_step
        steps.add(newest.step)
        resumed = make_training()
        resumed.restore(newest)  # a resumed run keeps what it needs
        load_final_weights(resumed, config, root, lambda: 1.0)
        reach(resumed, 4, False, root)
        assert {4, best_step} <= set(list_steps(root))
        shutil.rmtree(root)
        if is_complete:
            break
    assert n > 30 and steps == {2, 3}


@pytest.mark.acceptance("B3")
@pytest.mark.parametrize("kind", ["new step", "same step"])
def test_single_error_is_retried(memory_dir, inject, kind, caplog):
    for n in range(1, 1000):
        root = memory_dir / str(n)
        save(root, 1, 1.0)

        def fail_once(name, count, n=n):
            if count == n:
                raise OSError(errno.EIO, "Input/output error")

        faulty = inject(fail_once)
        SAVES[kind](root)
        faulty.fault = lambda name, count: None
        assert read_newest_value(root) == 2.0
        assert not list_leftovers(root) and not (root / "latest.tmp").exists()
        if faulty.count < n:
            break
    assert n > 30 and caplog.text.count("retrying once") > 30


@pytest.mark.acceptance("B3", "R2")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("kind", ["new step", "same step"])
@pytest.mark.parametrize("fails_cleaning", [False, True])
def test_permanent_error_leaves_the_checkpoint_unchanged(memory_dir, inject, kind, code, fails_cleaning):
    for n in range(1, 1000):
        root = memory_dir / str(n)
        save(root, 1, 1.0)

        def fail(name, count, n=n):
            if count >= n and (fails_cleaning or name not in CLEANING):
                raise OSError(code, os.strerror(code))

        faulty = inject(fail)
        try:
            SAVES[kind](root)
            break
        except SaveError as caught:
            error = caught
        assert os.strerror(code) in str(error) and str(root) in str(error) and "\n" not in str(error)
        assert isinstance(error.__cause__, OSError)
        assert fails_cleaning or not [name for name in os.listdir(root) if ".tmp-" in name]
        faulty.fault = lambda name, count: None
        assert read_newest_value(root) in ({1.0, 2.0} if fails_cleaning else {1.0})
        SAVES[kind](root)
        assert read_newest_value(root) == 2.0 and not list_leftovers(root)
    assert n > 20


@pytest.mark.parametrize(
    ("operation", "error", "expected", "message"),
    [
        ("write", OSError(errno.ENOSPC, "No space left on device"), SaveError, FULL_DISK),
        ("fsync", KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_full_disk_and_interrupt_are_not_retried(operation, error, expected, message, tmp_path, inject):
    def fail(name, count):
        if name == operation:
            raise error

    faulty = inject(fail)
    with pytest.raises(expected, match=message):
        save(tmp_path, 1, 1.0)
    assert faulty.names.count(operation) == 1 and os.listdir(tmp_path) == []


def count_disk_bytes(root):
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*"))


@pytest.fixture
def mount_disk(tmp_path):
    """A function that mounts a file system of a number of bytes until the end of the test."""
    root = tmp_path / "disk"

    def mount(size):
        root.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(root)]
        is_possible = os.geteuid() == 0 and shutil.which("mount") is not None
        if not is_possible or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a small file system needs root")
        return root

    yield mount
    if root.is_mount():
        subprocess.run(["umount", str(root)], check=True)


LARGE = {"model": {"w": torch.arange(100_000.0)}, "optimizer": {"m": torch.arange(200_000.0)}}
ROOM = [0.0, 0.05, 0.2, 0.3, 0.34, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]  # of what the next checkpoint needs


@pytest.mark.acceptance("B2", "R4")
@pytest.mark.parametrize("is_checked", [True, False], ids=["before writing", "while writing"])
@pytest.mark.parametrize("room", ROOM)
def test_full_disk_leaves_the_previous_checkpoint(mount_disk, tmp_path, monkeypatch, room, is_checked):
    large = count_disk_bytes(save_checkpoint(tmp_path / "measure", 1, LARGE, {}))
    small = count_disk_bytes(
        save_checkpoint(tmp_path / "measure", 2, make_filled_tensors(1.0), {"value": 1.0})
    )
    root = mount_disk(int(small + 4096 + room * large))
    with monkeypatch.context() as patch:  # the reserve would not let the small one pass
        disk_usage = shutil.disk_usage
        patch.setattr(shutil, "disk_usage", lambda path: disk_usage(path)._replace(free=1 << 40))
        save(root, 1, 1.0)
        if is_checked:
            patch.undo()
        with pytest.raises(SaveError) as error:
            save_checkpoint(root, 2, LARGE, {})
    assert str(root) in str(error.value)
    assert re.search(r"126\d{4} bytes are needed and \d+ are free", str(error.value))  # with the reserve
    assert is_checked == ("No space left" not in str(error.value))
    assert sorted(os.listdir(root)) == ["latest", "step-1"] and read_newest_value(root) == 1.0
