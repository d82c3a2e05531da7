import json
import multiprocessing
import os
import signal
import socket
from contextlib import suppress
from threading import BrokenBarrierError

import pytest
from tests.train.conftest import user_error

from polyhead.core.atomic_io import process_start_time
from polyhead.core.errors import UserError
from polyhead.train import lock
from polyhead.train.lock import RunLock


def write_lock(directory, **changes) -> None:
    own_fields = {"pid": os.getpid(), "host": socket.gethostname(), "start": process_start_time(os.getpid())}
    (directory / "run.lock").write_text(json.dumps(own_fields | changes))


def read_pid(directory) -> int:
    return json.loads((directory / "run.lock").read_text())["pid"]


def try_lock(directory) -> None:
    with RunLock(directory):
        pass


@pytest.mark.acceptance("B13")
def test_lock_holds_until_its_process_is_killed(tmp_path):
    (ready, send_ready), (end, release) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        with RunLock(tmp_path):
            os.write(send_ready, b"+")
            os.read(end, 1)
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"+"
        with user_error(f"in use by process {pid}"):
            try_lock(tmp_path)
        os.kill(pid, signal.SIGKILL)
        # a zombie that its parent has not waited for is dead
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert read_pid(tmp_path) == pid
        with RunLock(tmp_path):
            assert read_pid(tmp_path) == os.getpid()
    finally:
        os.close(release)
        os.waitpid(pid, 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.acceptance("B13")
def test_second_lock_of_same_process_is_refused(tmp_path):
    with RunLock(tmp_path):
        with user_error("in use"):
            try_lock(tmp_path)
        assert (tmp_path / "run.lock").exists()
    with RunLock(tmp_path / "new" / "directory") as run_lock:  # whose deletion is no error at the end
        run_lock.path.unlink()
        run_lock.path.parent.rmdir()
    (tmp_path / "file").write_text("")
    with user_error("cannot lock"):
        try_lock(tmp_path / "file" / "run")


@pytest.mark.acceptance("B13")
def test_lock_is_stale_by_time_and_host(tmp_path):
    write_lock(tmp_path)
    with user_error("in use"):
        try_lock(tmp_path)
    write_lock(tmp_path, start=process_start_time(os.getpid()) - 1)  # its process id was used again
    with RunLock(tmp_path):
        write_lock(tmp_path, host="elsewhere", pid=4194303)
    with user_error(f"on elsewhere.*delete {tmp_path / 'run.lock'}"):  # it is not released, and respected
        try_lock(tmp_path)
    assert (tmp_path / "run.lock").exists()


def test_only_its_process_releases_the_lock(tmp_path):
    def run():
        with RunLock(tmp_path) as run_lock:
            pid = os.fork()
            if pid == 0:
                run_lock.__exit__(None, None, None)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            assert (tmp_path / "run.lock").exists()
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"pid": "x", "host": "h", "start": 1}', "null", "[" * 4000, '{"pid": 1e400}'],
)
def test_damaged_lock_is_stale(content, tmp_path):
    (tmp_path / "run.lock").write_text(content)
    try_lock(tmp_path)
    assert os.listdir(tmp_path) == []


def test_lock_that_is_a_symlink_is_refused(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "run.lock").symlink_to(target)
    with user_error("link"):
        try_lock(tmp_path)
    assert target.read_text() == "precious"


@pytest.mark.acceptance("B13")
def test_one_of_many_processes_takes_a_stale_lock(tmp_path, monkeypatch):
    check, barrier = lock._refuse_if_held, multiprocessing.get_context("fork").Barrier(12)

    def check_together(path):
        check(path)
        with suppress(BrokenBarrierError):  # all of them see the same stale lock, if they can
            barrier.wait(2)

    monkeypatch.setattr(lock, "_refuse_if_held", check_together)
    write_lock(tmp_path, pid=4194303)
    (ready, go), (answers, answer), (end, release) = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(12):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.close(release)
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
    results = b"".join(os.read(answers, 1) for _ in children)
    os.close(release)
    for pid in children:
        os.waitpid(pid, 0)
    for fd in (ready, answers, answer, end):
        os.close(fd)
    assert sorted(results) == sorted(b"+" + b"-" * 11)
    assert read_pid(tmp_path) in children
