"""Processes that train together, forked from one without threads; each tells how it ended.

A fork of the test's own process would be without its threads, but with the locks that they hold at that
moment.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import cloudpickle
import torch

from polyhead.core.errors import UserError
from polyhead.train.distributed.launch import LISTENING_ENV, RANK_LOST
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.torch_process_group import PeerLostError, init_process_group

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 100.0  # seconds after which a test has failed
SEEN = 10.0  # seconds before that, in which who still runs says where it is


class End(NamedTuple):
    """How a process ended: exit code or minus the signal, and what it said or gave."""

    code: int
    said: Any


class Wish(NamedTuple):
    """What is to be run in so many processes; it is pickled, functions of tests and all that they know with
    it.
    """

    world: int
    work: Callable[[ProcessGroup], Any]
    timeout: float
    machines: int
    enough: int | None
    before: Callable[[], None] | None


def together(
    world: int,
    work: Callable[[ProcessGroup], Any],
    timeout: float = 20.0,
    machines: int = 1,
    enough: int | None = None,
    before: Callable[[], None] | None = None,
) -> list[End]:
    """Run ``work`` in so many processes; those that are left when ``enough`` have ended are killed.

    ``before`` runs in each of them before it joins the others.
    """
    wish = Wish(world, work, timeout, machines, enough, before)
    stem = _stem()
    stem.send_bytes(cloudpickle.dumps(wish))
    ends, stood = stem.recv()
    assert not stood, f"{ends}\n{stood}"
    return list(ends)


@cache
def _stem() -> Connection:
    """The process that the others are forked from, which has imported torch for all of them; it ends with
    this one.
    """
    ours, theirs = Pipe()
    code = f"from tests.train.several import serve; serve({theirs.fileno()})"
    subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, pass_fds=[theirs.fileno()])
    theirs.close()
    return ours


def serve(connection: int) -> None:
    """Fork what is wished for, until nobody wishes any more."""
    importlib.import_module("torch.distributed.fsdp")  # half a second, which each of them would take
    importlib.import_module("torch.distributed.checkpoint")
    tasks = Path("/proc/self/task")
    assert not tasks.exists() or len(list(tasks.iterdir())) == 1, "what is forked would lack a thread"
    os.fsync = lambda fd: None  # type: ignore[assignment]  # who is killed loses nothing that it has written
    wishes = Connection(connection)
    while True:
        try:
            given = wishes.recv_bytes()
        except EOFError:
            return
        wishes.send(_forked(cloudpickle.loads(given)))


def _forked(wish: Wish) -> tuple[list[End], str]:
    """How each process ended, and where those stood that did not by themselves."""
    with (
        TemporaryDirectory() as directory,
        socket.create_server(("127.0.0.1", 0), backlog=wish.world) as listener,
    ):
        place, started = Path(directory), time.monotonic()
        pids = {}
        for rank in range(wish.world):
            pid = os.fork()
            if pid == 0:
                _child(rank, wish, listener, place)
            pids[pid] = rank
        ends: dict[int, End] = {}
        stood, enough = "", wish.enough
        while len(ends) < wish.world:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in pids:
                said = place / str(pids[pid])
                content = json.loads(said.read_text()) if said.exists() else None
                ends[pids[pid]] = End(os.waitstatus_to_exitcode(status), content)
            elif (late := time.monotonic() - started > LIMIT) or len(ends) == enough:
                for other, rank in pids.items():
                    if rank not in ends:
                        stood += f"rank {rank}:\n{(place / f'{rank}.trace').read_text()}\n" if late else ""
                        os.kill(other, signal.SIGKILL)
                enough, started = None, time.monotonic()
            else:
                time.sleep(0.005)
        return [ends[rank] for rank in range(wish.world)], stood


def _child(rank: int, wish: Wish, listener: socket.socket, place: Path) -> None:
    trace = (place / f"{rank}.trace").open("w")
    faulthandler.dump_traceback_later(LIMIT - SEEN, file=trace)
    here = wish.world // wish.machines
    told = {"RANK": rank, "WORLD_SIZE": wish.world, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": listener.getsockname()[1],
                LISTENING_ENV: listener.fileno(),
            "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    os.environ.update({name: str(value) for name, value in told.items()})
    torch.set_num_threads(1)
    code, said = 70, None
    try:
        if wish.before is not None:
            wish.before()
        with init_process_group(wish.timeout) as ranks:
            said = wish.work(ranks)
        code = 0
    except PeerLostError as error:
        code, said = RANK_LOST, str(error)
    except UserError as error:
        code, said = 2, str(error)
    except BaseException as error:
        said = repr(error)
    temporary = place / f"{rank}.tmp"
    temporary.write_text(json.dumps(said))
    temporary.rename(place / str(rank))
    os._exit(code)
