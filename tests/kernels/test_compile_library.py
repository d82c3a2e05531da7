import ctypes
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.kernels.user_cache_helpers import set_owner

from polyhead.kernels import compile_library as user_cache
from polyhead.kernels.compile_library import CompileError, compile_library, has_library

BLOCKING_SCRIPT = "sleep 1000 & echo $! >> pids; echo $$ >> pids; wait"  # a driver and its compiler


class Compiler:
    def __init__(self, directory):
        self.path, self.directory = directory / "g++", directory

    def write(self, body):
        script = f'#!/bin/sh\necho call >> calls\nfor output; do :; done\n{body}\necho library > "$output"\n'
        self.path.write_text(script)
        self.path.chmod(0o755)

    @property
    def num_calls(self):
        calls = self.directory / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def compile(self, library):
        compile_library(library, [str(self.path)], self.directory)

    def start_process(self, library):
        """Fork a process that compiles; its id."""
        if pid := os.fork():
            poll(lambda: len(self.pids) == 2)
            return pid
        try:
            self.compile(library)
        finally:
            os._exit(1)

    @property
    def pids(self):
        path = self.directory / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def poll(condition):
    """Wait for a condition; pytest's timeout ends a test in which it never holds."""
    while not condition():
        time.sleep(0.02)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def compiler(tmp_path):
    compiler = Compiler(tmp_path)
    compiler.write("")
    yield compiler
    for pid in filter(is_running, compiler.pids):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def num_waiting(monkeypatch):
    semaphore, flock = threading.Semaphore(0), user_cache.fcntl.flock

    def count_waiting(*arguments):
        semaphore.release()
        flock(*arguments)

    monkeypatch.setattr(user_cache.fcntl, "flock", count_waiting)
    return semaphore


@pytest.fixture
def library(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path / "cache" / "kernels-1.so"


def test_compiled_library_is_found_again(tmp_path, library, capsys):
    (tmp_path / "kernels.cpp").write_text('extern "C" int answer() { return 42; }')
    compile_library(library, ["g++", "-shared", "-fPIC", "kernels.cpp"], tmp_path)
    assert ctypes.CDLL(str(library)).answer() == 42
    assert capsys.readouterr().err.startswith("polyhead: compiling kernels")
    names = sorted(path.name for path in library.parent.iterdir())
    assert names == ["kernels-1.sha256", "kernels-1.so", "lock"]
    compile_library(library, ["no-such-compiler"], tmp_path)
    assert capsys.readouterr().err == ""


DAMAGES = {
    "truncated": lambda library, digest: library.write_bytes(library.read_bytes()[:-1]),
    "changed": lambda library, digest: library.write_bytes(b"L" + library.read_bytes()[1:]),
    "no digest": lambda library, digest: digest.unlink(),
    "damaged digest": lambda library, digest: digest.write_bytes(b"\xff" * 1000),
    "digest of another user": None,
    "no library": lambda library, digest: library.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_libraries_are_rebuilt(damage, compiler, library, monkeypatch):
    compiler.compile(library)
    digest = library.with_suffix(".sha256")
    if change := DAMAGES[damage]:
        change(library, digest)
    else:
        set_owner(monkeypatch, digest, 4321)
    assert not has_library(library)
    old = os.umask(0)  # libraries are private with any umask
    try:
        compiler.compile(library)
    finally:
        os.umask(old)
    assert compiler.num_calls == 2 and library.read_text() == "library\n"
    assert has_library(library) and library.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("reason", ["writable by the group", "writable by all", "of another user"])
def test_shared_libraries_are_refused(reason, compiler, library, monkeypatch):
    compiler.compile(library)
    if reason == "of another user":
        set_owner(monkeypatch, library, 4321)
    else:
        library.chmod(0o720 if "group" in reason else 0o702)
    with pytest.raises(PermissionError, match=str(library)):
        compiler.compile(library)
    assert compiler.num_calls == 1


@pytest.mark.parametrize("has_locks", [True, False])
def test_failures_are_remembered(has_locks, compiler, library, monkeypatch):
    if not has_locks:
        monkeypatch.setattr(user_cache.fcntl, "flock", lambda *_: os.lstat("/no such file"))
    compiler.write("echo 'In file included from a.hpp:' >&2; echo 'k.cpp:3:1: error: no' >&2; exit 1")
    with pytest.raises(CompileError, match=r"^g\+\+ failed: k\.cpp:3:1: error: no$"):
        compiler.compile(library)
    marker = library.with_suffix(".failed")
    with pytest.raises(CompileError, match=rf"k\.cpp:3:1: error: no; to compile again, delete {marker}$"):
        compiler.compile(library)
    assert compiler.num_calls == 1
    compiler.write("")
    compiler.compile(library.with_name("kernels-2.so"))  # other sources, flags, compiler or processor
    marker.unlink()
    compiler.compile(library)
    assert compiler.num_calls == 3


@pytest.mark.parametrize(
    "failure",
    [
        "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
        "echo 'cc1plus: out of memory allocating 65536 bytes' >&2; exit 1",
        "echo '/tmp/x.s: fatal error: No space left on device' >&2; exit 1",
        "kill -s KILL $$",
    ],
)
def test_transient_failures_are_not_remembered(failure, compiler, library):
    compiler.write(failure)
    with pytest.raises(CompileError, match="failed: "):
        compiler.compile(library)
    compiler.write("")
    compiler.compile(library)
    assert compiler.num_calls == 2


def test_threads_compile_once(compiler, library, num_waiting):
    compiler.write("while [ ! -e go ]; do sleep 0.02; done")
    threads = [threading.Thread(target=compiler.compile, args=[library]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        num_waiting.acquire()
    (compiler.directory / "go").touch()
    for thread in threads:
        thread.join()
    assert compiler.num_calls == 1 and has_library(library)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_compilers_end_with_their_process(number, compiler, library, num_waiting):
    compiler.write(BLOCKING_SCRIPT)
    process = compiler.start_process(library)
    pids = compiler.pids
    assert all(map(is_running, pids))
    # a thread of this process waits for the lock and compiles when the process dies
    compiler.write("")
    thread = threading.Thread(target=compiler.compile, args=[library])
    thread.start()
    num_waiting.acquire()
    assert compiler.num_calls == 1
    os.kill(process, number)
    assert os.waitpid(process, 0)[1] != 0
    thread.join()
    poll(lambda: not any(map(is_running, pids)))
    assert compiler.num_calls == 2 and has_library(library)
    assert sorted(path.suffix for path in library.parent.iterdir()) == ["", ".sha256", ".so"]


def test_interrupted_compilation_cleans_up(compiler, library, monkeypatch):
    def communicate(process):
        poll(lambda: len(compiler.pids) == 2)
        raise KeyboardInterrupt

    compiler.write(BLOCKING_SCRIPT)
    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(KeyboardInterrupt):
        compiler.compile(library)
    poll(lambda: not any(map(is_running, compiler.pids)))
    assert [path.name for path in library.parent.iterdir()] == ["lock"]


def test_compilers_are_english_and_silent_on_stdout(compiler, library, monkeypatch, capfd):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    compiler.write("echo output")
    compiler.compile(library)
    assert capfd.readouterr().out == ""
    compiler.write('echo "error: $LC_ALL" >&2; exit 1')
    with pytest.raises(CompileError, match=r"error: C$"):
        compiler.compile(library.with_name("kernels-2.so"))
