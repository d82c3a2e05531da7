"""Processes that train together, forked from the test, which spares the import of torch; each tells how it ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from polyhead.errors import UserError
from polyhead.train.launch import LISTENING, LOST
from polyhead.train.ranks import Ranks
from polyhead.train.several import Lost, joined

LIMIT = 100.0  # seconds after which a test has failed


class End(NamedTuple):
    """How a process ended: exit code or minus the signal, and what it said or gave."""

    code: int
    said: Any


def together(
    world: int,
    work: Callable[[Ranks], Any],
    timeout: float = 20.0,
    machines: int = 1,
    enough: int | None = None,
) -> list[End]:
    """Run ``work`` in so many processes; those that are left when ``enough`` have ended are killed."""
    with (
        TemporaryDirectory() as place,
        socket.create_server(("127.0.0.1", 0), backlog=world) as listener,
    ):
        started = time.monotonic()
        pids = {}
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                _child(rank, world, listener, work, timeout, Path(place), machines)
            pids[pid] = rank
        ends: dict[int, End] = {}
        while len(ends) < world:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in pids:
                said = Path(place) / str(pids[pid])
                content = json.loads(said.read_text()) if said.exists() else None
                code = os.waitstatus_to_exitcode(status)
                ends[pids[pid]] = End(code, content)
            elif time.monotonic() - started > LIMIT or len(ends) == enough:
                for other, rank in pids.items():
                    if rank not in ends:
                        os.kill(other, signal.SIGKILL)
                enough = None
            else:
                time.sleep(0.005)
        assert time.monotonic() - started < LIMIT, ends
        return [ends[rank] for rank in range(world)]


def _child(
    rank: int,
    world: int,
    listener: socket.socket,
    work: Callable[[Ranks], Any],
    timeout: float,
    place: Path,
    machines: int,
) -> None:
    here = world // machines
    told = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": listener.getsockname()[1], LISTENING: listener.fileno(),
            "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    os.environ.update({name: str(value) for name, value in told.items()})
    torch.set_num_threads(1)
    code, said = 70, None
    try:
        with joined(timeout) as ranks:
            said = work(ranks)
        code = 0
    except Lost as error:
        code, said = LOST, str(error)
    except UserError as error:
        code, said = 2, str(error)
    except BaseException as error:
        said = repr(error)
    temporary = place / f"{rank}.tmp"
    temporary.write_text(json.dumps(said))
    temporary.rename(place / str(rank))
    os._exit(code)
