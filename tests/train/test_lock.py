"""One run to a directory: the second is refused, the dead are not waited for."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyhead.core.errors import UserError
from polyhead.core.process_liveness import process_start_time
from polyhead.train import lock
from polyhead.train.lock import RunLock

HOLD = """
import sys, time
from polyhead.train.lock import RunLock
with RunLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(directory: Path) -> subprocess.Popen:
    env = os.environ | {"PYTHONPATH": str(Path(lock.__file__).parents[2])}
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, env=env)
    assert child.stdout.readline() == b"held\n"
    return child


def write_lock(directory: Path, **changes) -> None:
    me = {"pid": os.getpid(), "host": socket.gethostname(), "start": process_start_time(os.getpid())}
    (directory / "run.lock").write_text(json.dumps(me | changes))


@pytest.mark.acceptance("B13")
def test_a_second_run_is_refused_while_the_first_lives_and_not_after(tmp_path):
    child = holder(tmp_path)
    try:
        with pytest.raises(UserError, match=f"in use by process {child.pid}"), RunLock(tmp_path):
            pass
        child.send_signal(signal.SIGKILL)
        # a zombie, which its parent has not fetched yet, runs no more
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == child.pid
        with RunLock(tmp_path):
            assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.acceptance("B13")
def test_a_second_lock_of_the_same_process_is_refused(tmp_path):
    with RunLock(tmp_path):
        with pytest.raises(UserError, match="in use"), RunLock(tmp_path):
            pass
        assert (tmp_path / "run.lock").exists()
    with RunLock(tmp_path / "new" / "directory"):
        pass


@pytest.mark.acceptance("B13")
def test_a_pid_that_was_given_to_another_process_does_not_hold_the_lock(tmp_path):
    write_lock(tmp_path)
    with pytest.raises(UserError, match="in use"), RunLock(tmp_path):
        pass
    write_lock(tmp_path, start=process_start_time(os.getpid()) - 1)
    with RunLock(tmp_path):
        pass


@pytest.mark.acceptance("B13")
def test_a_lock_of_another_host_is_respected_and_the_way_out_is_said(tmp_path):
    write_lock(tmp_path, host="elsewhere", pid=4194303)
    with pytest.raises(UserError, match=f"on elsewhere.*delete {tmp_path / 'run.lock'}"), RunLock(tmp_path):
        pass
    assert (tmp_path / "run.lock").exists()


@pytest.mark.parametrize("torn", ["", "{", "[]", "{}", '{"pid": "x", "host": "h", "start": 1}', "null"])
def test_a_torn_lock_is_stale(tmp_path, torn):
    (tmp_path / "run.lock").write_text(torn)
    with RunLock(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_lock_that_is_a_link_is_refused_and_its_target_left(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "run.lock").symlink_to(target)
    with pytest.raises(UserError, match="link"), RunLock(tmp_path):
        pass
    assert target.read_text() == "precious"


def test_the_lock_is_released_after_an_error(tmp_path):
    with pytest.raises(RuntimeError), RunLock(tmp_path):
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_a_forked_child_does_not_release_the_lock_of_its_parent(tmp_path):
    with RunLock(tmp_path) as held:
        pid = os.fork()
        if pid == 0:
            held.__exit__(None, None, None)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert (tmp_path / "run.lock").exists()


def test_a_lock_that_someone_else_took_over_is_not_released(tmp_path):
    with RunLock(tmp_path):
        write_lock(tmp_path, host="elsewhere")
    assert json.loads((tmp_path / "run.lock").read_text())["host"] == "elsewhere"


def test_a_directory_that_is_gone_at_the_end_is_no_error(tmp_path):
    with RunLock(tmp_path / "run") as held:
        held.path.unlink()
        held.path.parent.rmdir()


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot lock"), RunLock(tmp_path / "file" / "run"):
        pass


@pytest.mark.acceptance("B13")
def test_of_many_that_start_at_once_on_a_stale_lock_one_wins(tmp_path, monkeypatch):
    look = lock._refuse_if_held

    def slow_look(path):
        look(path)
        time.sleep(0.05)  # time for the others to see the same stale lock

    monkeypatch.setattr(lock, "_refuse_if_held", slow_look)
    write_lock(tmp_path, pid=4194303)
    (ready, go), (answers, answer), (end, over) = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(12):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.close(over)
            os.read(ready, 1)
            try:
                RunLock(tmp_path).__enter__()
                os.write(answer, b"+")
            except UserError:
                os.write(answer, b"-")
            finally:
                os.read(end, 1)  # holds until all have answered
                os._exit(0)
        children.append(pid)
    os.close(go)
    said = b"".join(os.read(answers, 1) for _ in children)
    os.close(over)
    for pid in children:
        os.waitpid(pid, 0)
    for fd in (ready, answers, answer, end):
        os.close(fd)
    assert sorted(said) == sorted(b"+" + b"-" * 11)
    assert json.loads((tmp_path / "run.lock").read_text())["pid"] in children
