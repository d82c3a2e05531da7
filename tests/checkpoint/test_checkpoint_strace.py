"""A forked process forks a saver for each point; strace attaches to it once. strace counts the calls of each
process apart and kills at the LAST-th, so a saver to die at its n-th makes LAST - n empty calls first.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import threading

import pytest
from tests.checkpoint.checkpoint_helpers import (
    list_leftovers,
    make_filled_tensors,
    read_filled_value,
    run_in_fork,
)

from polyhead.checkpoint.checkpoint import prune_steps, read_newest_checkpoint, save_checkpoint

LAST = 60
EMPTY_CALLS = {
    "openat": lambda: os.open("", 0),
    "write": lambda: os.write(99999, b""),
    "fsync": lambda: os.fsync(99999),
    "rename": lambda: os.rename("", ""),
    "unlink": lambda: os.unlink(""),
    "rmdir": lambda: os.rmdir(""),
    "mkdir": lambda: os.mkdir(""),
}


def save_after_empty_calls(directory, step, call, n):
    for _ in range(LAST - n):
        with contextlib.suppress(OSError):
            EMPTY_CALLS[call]()
    save_checkpoint(directory, step, make_filled_tensors(2.0), {"value": 2.0})
    prune_steps(directory, 1)


def save_at_points(root, step, calls):
    results = []
    for call in calls:
        for n in range(1, LAST + 1):
            directory = root / f"{call}-{n}"
            code = run_in_fork(lambda d=directory, c=call, n=n: save_after_empty_calls(d, step, c, n))
            results.append([call, n, code])
            if code >= 0 and n > 1:
                break
    (root / "points.json").write_text(json.dumps(results))


def trace(root, step, calls, *options):
    """Save with strace attached, for each call until a saver gets through: [call, n, exit code] of each."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    save_checkpoint(root / "first", 1, make_filled_tensors(1.0), {"value": 1.0})
    for call in calls:
        for n in range(1, LAST + 1):
            shutil.copytree(root / "first", root / f"{call}-{n}")
    is_attached, attach = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # let a process that is no parent attach
            os.read(is_attached, 1)
            save_at_points(root, step, calls)
            os._exit(0)
        finally:
            os._exit(1)
    command = ["strace", "-f", "-o", str(root / "log"), "-p", str(pid), "-e", "trace=" + ",".join(calls)]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as strace:
        line = strace.stderr.readline()
        threading.Thread(target=strace.stderr.read, daemon=True).start()
        os.write(attach, b"x")
        assert os.waitpid(pid, 0)[1] == 0
    os.close(is_attached)
    os.close(attach)
    if "attached" not in line:
        pytest.skip(f"strace cannot attach here: {line.strip()}")
    return json.loads((root / "points.json").read_text())


@pytest.mark.acceptance("B1", "R2")
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.slow)], ids=["new", "same"])
def test_kill_at_any_system_call_leaves_the_checkpoint(memory_dir, step):
    calls = list(EMPTY_CALLS)
    kill = [word for call in calls for word in ("-e", f"inject={call}:signal=SIGKILL:when={LAST}")]
    points = trace(memory_dir, step, calls, *kill)
    kills = [(call, n) for call, n, status in points if status == -9]
    assert {status for _, _, status in points} == {0, -9}
    assert {call for call, _ in kills} == set(calls) and len(kills) > 30
    assert all(n < LAST for _, n in kills), "there are more calls than points"
    for call, n, status in points:
        root = memory_dir / f"{call}-{n}"
        is_committed = status == 0 or (root / "step-2").exists()
        value = read_filled_value(read_newest_checkpoint(root))
        assert value in ({2.0} if is_committed else {1.0, 2.0}), (call, n)
        assert not list_leftovers(root)


@pytest.mark.acceptance("B1")
def test_data_reach_the_disk_before_their_names(memory_dir):
    """fsync(data) < fsync(directory) < rename < fsync(parent) < latest < deleting: no kill can show it."""
    trace(memory_dir, 2, ["openat", "write", "fsync", "rename", "mkdir", "unlink"], "-y")
    root, log = memory_dir / "rename-2", (memory_dir / "log").read_text().splitlines()
    text = "\n".join(line for line in log if str(root) in line).replace(str(root), "ROOT")
    for step, name in (("step-2", "NEW"), ("step-1", "OLD")):
        text = re.sub(rf"{step}\.tmp-\d+-\d+", name, text)
    events = []
    for line in text.splitlines():
        call, arguments = re.fullmatch(r"\d+ +(\w+)\((.*)", line).groups()
        if call != "openat":
            events.append((call, *re.findall(r'ROOT[^">]*', arguments)))
    expected = [("mkdir", "ROOT/NEW")]
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"):
        expected += [("write", f"ROOT/NEW/{name}"), ("fsync", f"ROOT/NEW/{name}")]
    expected += [
        ("fsync", "ROOT/NEW"),
        ("rename", "ROOT/NEW", "ROOT/step-2"),
        ("fsync", "ROOT"),
        ("write", "ROOT/latest.tmp"),
        ("fsync", "ROOT/latest.tmp"),
        ("rename", "ROOT/latest.tmp", "ROOT/latest"),
        ("fsync", "ROOT"),
        ("rename", "ROOT/step-1", "ROOT/OLD"),
    ]
    assert [event for event in events if event[0] != "unlink"] == expected
    deletions = [i for i, event in enumerate(events) if event[0] == "unlink"]
    assert min(deletions) == events.index(expected[-1]) + 1
