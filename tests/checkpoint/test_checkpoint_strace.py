"""The same kills from outside, at every system call of a save, and the order in which it reaches the disk.

One process imports torch and forks a saver for each point; strace attaches to it once. strace counts the
calls of each process apart and kills at the LAST-th, so one to die at its n-th makes LAST - n empty calls
first.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from polyhead.checkpoint import checkpoint
from polyhead.checkpoint.checkpoint import read_newest_checkpoint, save_checkpoint

LAST = 60
KILLED = ["openat", "write", "fsync", "rename", "unlink", "rmdir", "mkdir"]
FAILED = ["write", "fsync", "rename", "mkdir"]  # and are tried again

DRIVER = """
import ctypes, json, os, sys, traceback
import torch
from polyhead.checkpoint.checkpoint import prune, save
root, step, last, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")
points = int(sys.argv[5])
empty = {
    "openat": lambda: os.open("", 0), "write": lambda: os.write(99999, b""), "fsync": lambda: os.fsync(99999),
    "rename": lambda: os.rename("", ""), "unlink": lambda: os.unlink(""), "rmdir": lambda: os.rmdir(""),
    "mkdir": lambda: os.mkdir(""),
}

def saver(call, n):
    for _ in range(last - n):
        try:
            empty[call]()
        except OSError:
            pass
    directory = f"{root}/{call}-{n}"
    tensors = {"model": {"w": torch.full((4, 4), 2.0)}, "optimizer": {"m": torch.full((4, 4), -2.0)}}
    save(directory, step, tensors, {"value": 2.0})
    prune(directory, 1)

ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # let strace attach where only a parent may
print(os.getpid(), flush=True)
sys.stdin.readline()
results = []
for call in calls:
    for n in range(1, (points or last) + 1):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                saver(call, n)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        results.append([call, n, status])
        if status >= 0 and n > 1 and not points:
            break
open(f"{root}/points.json", "w").write(json.dumps(results))
"""


def trace(root: Path, step: int, calls: list[str], *options: str, points: int = 0) -> tuple[list[list], str]:
    """Run the driver with strace attached: [call, n, exit status of the saver] for each, and stderr.

    So many ``points`` for each call, else as many as there are until a saver gets through.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    env = os.environ | {"PYTHONPATH": str(Path(checkpoint.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    arguments = [str(root), str(step), str(LAST), ",".join(calls), str(points)]
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True,
    ) as driver:  # fmt: skip
        pid = driver.stdout.readline().strip()
        command = [
            "strace",
            "-f",
            "-o",
            str(root / "log"),
            "-p",
            pid,
            "-e",
            "trace=" + ",".join(calls),
            *options,
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            line = strace.stderr.readline()
            if "attached" not in line:
                driver.kill()
                strace.kill()
                pytest.skip(f"strace cannot attach here: {line.strip()}")
            threading.Thread(target=strace.stderr.read, daemon=True).start()
            said, errors = driver.communicate("go\n", timeout=100)
            assert driver.returncode == 0, (said, errors)
    return json.loads((root / "points.json").read_text()), errors


@pytest.fixture
def quick(tmp_path):
    """A directory in memory, where there is one."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def prepare(root: Path, calls: list[str]) -> None:
    """What an earlier part of the run left, once for each point."""
    save_checkpoint(root / "first", 1, {"model": {"w": torch.full((4, 4), 1.0)}}, {"value": 1.0})
    for call in calls:
        for n in range(1, LAST + 1):
            shutil.copytree(root / "first", root / f"{call}-{n}")


def value_of(found) -> float:
    values = {
        x for group in found.tensors.values() for t in group.values() for x in t.abs().flatten().tolist()
    }
    assert found.state == {"value": values.copy().pop()}
    assert len(values) == 1
    return values.pop()


@pytest.mark.acceptance("B1")
@pytest.mark.acceptance("R2")
@pytest.mark.parametrize("step", [1, 2], ids=["the same step again", "a new step"])
def test_a_kill_at_any_system_call_leaves_the_newest_committed_checkpoint(quick, step):
    prepare(quick, KILLED)
    inject = [f"inject={call}:signal=SIGKILL:when={LAST}" for call in KILLED]
    points, errors = trace(quick, step, KILLED, *(word for rule in inject for word in ("-e", rule)))
    killed = [(call, n) for call, n, status in points if status == -9]
    assert {status for _, _, status in points} == {0, -9}, errors
    assert {call for call, _ in killed} == set(KILLED)
    assert all(n < LAST for _, n in killed), "there are more calls than points"
    assert len(killed) > 30
    for call, n, status in points:
        root = quick / f"{call}-{n}"
        committed = 2.0 if status == 0 or (root / "step-2").exists() else None
        found = value_of(read_newest_checkpoint(root))
        assert found == committed or (committed is None and found in {1.0, 2.0}), (call, n)
        assert not [name for name in os.listdir(root) if ".tmp-" in name or ".old-" in name]


@pytest.mark.acceptance("B3")
def test_one_failed_system_call_is_tried_again(quick):
    prepare(quick, FAILED)
    inject = [f"inject={call}:error=EIO:when={LAST}" for call in FAILED]
    points, errors = trace(quick, 2, FAILED, *(word for rule in inject for word in ("-e", rule)), points=12)
    log = (quick / "log").read_text()
    assert log.count("(INJECTED)") > 15
    for call, n, status in points:
        assert status == 0, errors
        assert value_of(read_newest_checkpoint(quick / f"{call}-{n}")) == 2.0


@pytest.mark.acceptance("B1")
def test_data_reach_the_disk_before_their_names(quick):
    """fsync(data) < fsync(directory) < rename < fsync(parent) < latest < deleting: no kill can show it."""
    calls = ["openat", "write", "fsync", "rename", "mkdir", "unlink"]
    prepare(quick, calls)
    trace(quick, 2, calls, "-y")
    root = quick / "rename-2"
    ours = [line for line in (quick / "log").read_text().splitlines() if str(root) in line]
    text = re.sub(r"step-2\.tmp-\d+-\d+", "NEW", "\n".join(ours)).replace(str(root), "ROOT")
    text = re.sub(r"step-1\.tmp-\d+-\d+", "OLD", text)
    events = []
    for line in text.splitlines():
        call, rest = re.fullmatch(r"\d+ +(\w+)\((.*)", line).groups()
        paths = re.findall(r'ROOT[^">]*', rest)
        if call != "openat":
            events.append((call, *paths))
    files = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
    wanted = [("mkdir", "ROOT/NEW")]
    for name in files:
        wanted += [("write", f"ROOT/NEW/{name}"), ("fsync", f"ROOT/NEW/{name}")]
    wanted += [
        ("fsync", "ROOT/NEW"), ("rename", "ROOT/NEW", "ROOT/step-2"), ("fsync", "ROOT"),
        ("write", "ROOT/latest.tmp"), ("fsync", "ROOT/latest.tmp"),
        ("rename", "ROOT/latest.tmp", "ROOT/latest"), ("fsync", "ROOT"),
        ("rename", "ROOT/step-1", "ROOT/OLD"),
    ]  # fmt: skip
    assert [event for event in events if event[0] != "unlink"] == wanted
    deletions = [i for i, event in enumerate(events) if event[0] == "unlink"]
    assert deletions
    assert min(deletions) == events.index(wanted[-1]) + 1
