"""Kills and errors at every file operation of a save: the newest committed checkpoint is there and whole."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

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
from polyhead.train.train_state import TrainState, load_final_weights

OPERATIONS = {"open", "write", "fsync", "rename", "unlink", "rmdir", "mkdir", "listdir", "lstat"}
CLEANING = {"unlink", "rmdir", "listdir", "lstat"}


class FaultyOs:
    """The ``os`` module, but ``fault(name, n)`` is called before the n-th file operation."""

    def __init__(self, fault: Callable[[str, int], None]) -> None:
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
                done = real(args[0], args[1][: len(args[1]) // 2])
                self.fault(name, self.count)
                return done
            self.fault(name, self.count)
            return real(*args, **kwargs)

        return call


@pytest.fixture
def quick(tmp_path):
    """A directory in memory, where there is one: a thousand syncs of a disk take minutes."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture
def inject(monkeypatch):
    def use(fault: Callable[[str, int], None]) -> FaultyOs:
        faulty = FaultyOs(fault)
        for module in (atomic_io, checkpoint):
            monkeypatch.setattr(module, "os", faulty)
        return faulty

    yield use
    monkeypatch.undo()


def content(value: float) -> dict:
    return {"model": {"w": torch.full((4, 4), value)}, "optimizer": {"m": torch.full((4, 4), -value)}}


def value_of(found) -> float:
    """The one value that fills a checkpoint of ``content``; a mix of two saves has none."""
    values = {
        x for group in found.tensors.values() for t in group.values() for x in t.abs().flatten().tolist()
    }
    assert len(values) == 1
    assert found.state == {"value": values.copy().pop()}
    return values.pop()


def start(root: Path) -> None:
    """What an earlier part of the run left."""
    save_checkpoint(root, 1, content(1.0), {"value": 1.0})


def whole(root: Path, allowed: set[float]) -> None:
    found = read_newest_checkpoint(root)
    assert found is not None
    assert value_of(found) in allowed
    if (root / "step-2").exists():
        assert found.step == 2
    for step in list_steps(root):
        assert read_checkpoint(root / f"step-{step}").step == step
    assert not [name for name in os.listdir(root) if ".tmp-" in name or ".old-" in name]


SCENARIOS = {
    "a new step": lambda root: save_checkpoint(root, 2, content(2.0), {"value": 2.0}),
    "the same step again": lambda root: save_checkpoint(root, 1, content(2.0), {"value": 2.0}),
    "a new step, then pruning": lambda root: (
        save_checkpoint(root, 2, content(2.0), {"value": 2.0}),
        prune_steps(root, 1),
    ),
}


@pytest.mark.acceptance("B1", "B5")
@pytest.mark.acceptance("R2")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_file_operation_leaves_the_newest_committed_checkpoint(quick, inject, scenario):
    killed = 0
    for n in range(1, 1000):
        root = quick / str(n)
        start(root)
        pid = os.fork()
        if pid == 0:
            try:
                inject(lambda name, at, n=n: os.kill(os.getpid(), signal.SIGKILL) if at == n else None)
                SCENARIOS[scenario](root)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        killed += 1
        whole(root, {1.0, 2.0})
        save_checkpoint(root, 3, content(3.0), {"value": 3.0})
        assert value_of(read_newest_checkpoint(root)) == 3.0
        shutil.rmtree(root)
    assert killed > 30
    assert value_of(read_newest_checkpoint(root)) == 2.0


@pytest.mark.acceptance("B5")
@pytest.mark.parametrize("improved", [False, True])
def test_a_kill_between_pruning_and_commit_leaves_the_newest_and_the_best_that_it_names(
    quick, inject, improved
):
    """Saving deletes what is old first. Whatever is left names a best step, and that one is still there and
    whole.
    """
    config = TrainConfig(steps=9, keep=1)

    def trained() -> TrainState:
        torch.manual_seed(1)
        return TrainState(torch.nn.Linear(2, 2), config, 2, 9)

    def reach(training: TrainState, step: int, better: bool, root: Path) -> None:
        training.progress.step = step
        training.progress.record_evaluation(1.0 / step if better else 9.0, False)
        _save_checkpoint(training, config, root, {})

    killed, states = 0, set()
    for n in range(1, 1000):
        root, training = quick / str(n), trained()
        reach(training, 1, True, root)
        reach(training, 2, False, root)
        pid = os.fork()
        if pid == 0:
            try:
                inject(lambda name, at, n=n: os.kill(os.getpid(), signal.SIGKILL) if at == n else None)
                reach(training, 3, improved, root)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        found = read_newest_checkpoint(root)
        best = found.state["progress"]["best_step"]
        assert best == (3 if improved and found.step == 3 else 1)
        assert read_checkpoint(root / f"step-{best}").step == best
        states.add(found.step)
        again = trained()
        again.restore(found)  # a run that is resumed goes on, and keeps what it needs
        load_final_weights(again, config, root, lambda: 1.0)
        reach(again, 4, False, root)
        assert {4, best} <= set(list_steps(root))
        shutil.rmtree(root)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        killed += 1
    assert killed > 30 and states == {2, 3}


@pytest.mark.acceptance("B3")
@pytest.mark.parametrize("scenario", ["a new step", "the same step again"])
def test_an_error_that_passes_is_tried_again(quick, inject, scenario, caplog):
    n, raised = 0, True
    while raised:
        n, raised = n + 1, False
        root = quick / str(n)
        start(root)

        def once(name, at, n=n):
            nonlocal raised
            if at == n:
                raised = True
                raise OSError(errno.EIO, "Input/output error")

        faulty = inject(once)
        SCENARIOS[scenario](root)
        faulty.fault = lambda name, at: None
        assert value_of(read_newest_checkpoint(root)) == 2.0
        assert not [name for name in os.listdir(root) if ".tmp" in name or ".old" in name]
    assert n > 30
    assert caplog.text.count("retrying once") > 30


@pytest.mark.acceptance("B3")
@pytest.mark.acceptance("R2")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("scenario", ["a new step", "the same step again"])
@pytest.mark.parametrize("dead", [False, True], ids=["cleaning works", "nothing works"])
def test_an_error_that_stays_is_said_and_changes_nothing(quick, inject, scenario, code, dead):
    n = 0
    while True:
        n += 1
        root = quick / str(n)
        start(root)

        def always(name, at, n=n):
            if at >= n and (dead or name not in CLEANING):
                raise OSError(code, os.strerror(code))

        faulty = inject(always)
        try:
            SCENARIOS[scenario](root)
            break
        except SaveError as error:
            said = error
        assert "\n" not in str(said)
        assert os.strerror(code) in str(said)
        assert str(root) in str(said)
        assert isinstance(said.__cause__, OSError)
        assert dead or not [name for name in os.listdir(root) if ".tmp-" in name]
        faulty.fault = lambda name, at: None
        assert value_of(read_newest_checkpoint(root)) in ({1.0, 2.0} if dead else {1.0})
        SCENARIOS[scenario](root)
        assert value_of(read_newest_checkpoint(root)) == 2.0
        assert not [name for name in os.listdir(root) if ".tmp-" in name or ".old-" in name]
    assert n > 20


def test_a_full_disk_is_not_tried_again(tmp_path, inject):
    def full(name, at):
        if name == "write":
            raise OSError(errno.ENOSPC, "No space left on device")

    faulty = inject(full)
    with pytest.raises(SaveError, match=r"No space left on device; \d+ bytes are needed and \d+ are free"):
        save_checkpoint(tmp_path, 1, content(1.0), {})
    assert faulty.names.count("write") == 1
    assert os.listdir(tmp_path) == []


def test_an_interruption_from_the_keyboard_leaves_no_rest(tmp_path, inject):
    def interrupt(name, at):
        if name == "fsync":
            raise KeyboardInterrupt

    inject(interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 1, content(1.0), {})
    assert os.listdir(tmp_path) == []


# --- a disk that is really full ---


def size_of(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*"))


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a file system of so many bytes; it is gone after the test."""
    mounted = []

    def mount(size: int) -> Path:
        root = tmp_path / f"disk-{len(mounted)}"
        root.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(root)]
        if (
            os.geteuid() != 0
            or shutil.which("mount") is None
            or subprocess.run(command, capture_output=True).returncode
        ):
            pytest.skip("mounting a small file system needs root")
        mounted.append(root)
        return root

    yield mount
    for root in mounted:
        subprocess.run(["umount", str(root)], check=True)


LARGE = {"model": {"w": torch.arange(100_000.0)}, "optimizer": {"m": torch.arange(200_000.0)}}
ROOM = [0.0, 0.05, 0.2, 0.3, 0.34, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]  # of what the next checkpoint needs


@pytest.mark.acceptance("B2")
@pytest.mark.acceptance("R4")
@pytest.mark.parametrize("warned", [True, False], ids=["seen before", "met while writing"])
@pytest.mark.parametrize("room", ROOM)
def test_a_full_disk_leaves_the_previous_checkpoint(small_disk, tmp_path, monkeypatch, room, warned):
    large = size_of(save_checkpoint(tmp_path / "measure", 1, LARGE, {}))
    first = size_of(save_checkpoint(tmp_path / "measure", 2, content(1.0), {"value": 1.0}))
    root = small_disk(int(first + 4096 + room * large))
    real = shutil.disk_usage

    def blind(path):
        usage = real(path)
        return usage._replace(free=1 << 40)

    monkeypatch.setattr(
        checkpoint.shutil, "disk_usage", blind
    )  # the reserve would not let the small one pass
    save_checkpoint(root, 1, content(1.0), {"value": 1.0})
    if warned:
        monkeypatch.setattr(checkpoint.shutil, "disk_usage", real)
    with pytest.raises(SaveError) as error:
        save_checkpoint(root, 2, LARGE, {})
    assert str(root) in str(error.value)
    assert re.search(r"126\d{4} bytes are needed and \d+ are free", str(error.value))  # with the reserve
    assert warned == ("No space left" not in str(error.value))
    assert sorted(os.listdir(root)) == ["latest", "step-1"]
    assert value_of(read_newest_checkpoint(root)) == 1.0


@pytest.mark.acceptance("B2")
def test_a_limit_on_the_size_of_files_leaves_the_previous_checkpoint(tmp_path):
    save_checkpoint(tmp_path, 1, content(1.0), {"value": 1.0})
    code = f"""
import resource, torch
from polyhead.checkpoint.checkpoint import save_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
try:
    save_checkpoint({str(tmp_path)!r}, 2, {{"model": {{"w": torch.arange(200_000.)}}}}, {{}})
except ValueError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SaveError cannot save ")
    assert "File too large" in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-1"]
    assert value_of(read_newest_checkpoint(tmp_path)) == 1.0


def _environment() -> dict[str, str]:
    source = Path(checkpoint.__file__).parents[2]
    return os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
