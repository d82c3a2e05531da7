"""Processes that train together, forked from a server process that has no threads.

A fork of the test process itself would lack its threads but keep the locks that they hold.
"""

import faulthandler
import gc
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

from polyhead.core import registry
from polyhead.core.errors import UserError
from polyhead.hf.family import FAMILY
from polyhead.train.distributed.launch import LISTENING_ENV, RANK_LOST
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.torch_process_group import PeerLostError, init_process_group
from polyhead.train.report import RunReport

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240.0  # seconds after which a launch has failed, also on a busy machine
TRACE = 10.0  # seconds before that, in which processes still running dump their stacks
LAZY_MODULES = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "numpy.random",
    "sacrebleu",
    "polyhead.tokenizers.train_tokenizer",
    "polyhead.train.run_training",
)


class RankResult(NamedTuple):
    code: int
    output: Any


class Job(NamedTuple):
    """What the processes run; pickled with the functions of tests and all that these refer to."""

    world_size: int
    work: Callable[[ProcessGroup], Any]
    timeout: float
    machines: int
    n_expected: int | None
    setup: Callable[[], None] | None
    write_report: bool


def run_ranks(world_size, work, timeout=20.0, machines=1, n_expected=None, setup=None, write_report=False):
    """Run ``work`` in processes; those that are left when ``n_expected`` have ended are killed.

    ``setup`` runs in each of them before it joins the others.
    """
    server = start_server()
    server.send_bytes(
        cloudpickle.dumps(Job(world_size, work, timeout, machines, n_expected, setup, write_report))
    )
    try:
        results, traces = server.recv()
    except BaseException:  # of a timeout of the test: a later job must not get the results of this one
        start_server.cache_clear()
        raise
    assert not traces, f"{results}\n{traces}"
    return list(results)


def outputs_of(world_size: int, work: Callable[[ProcessGroup], Any], **options: Any) -> list[Any]:
    results = run_ranks(world_size, work, **{"timeout": 60, **options})
    assert [result.code for result in results] == [0] * world_size, results
    return [result.output for result in results]


def import_lazy_modules() -> None:
    """Import what a training imports on first use, so that forked processes need not: 1.5 s each."""
    for name in LAZY_MODULES:
        importlib.import_module(name)
    for parts in (FAMILY, *(part for part in vars(registry).values() if isinstance(part, registry.Registry))):
        parts.names()


def skip_report() -> None:
    """Take no samples and write no page of a run: half of the time of a short training."""
    RunReport.update = lambda *_: None  # type: ignore[method-assign, assignment]
    RunReport.finish = lambda self, status: setattr(self, "state", status)  # type: ignore[method-assign]


@cache
def start_server() -> Connection:
    """Start the process that the others are forked from; it ends with this one."""
    local, remote = Pipe()
    code = f"from tests.train.ranks import serve; serve({remote.fileno()})"
    subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, pass_fds=[remote.fileno()])
    remote.close()
    return local


def serve(connection: int) -> None:
    import_lazy_modules()
    threads = Path("/proc/self/task")
    assert not threads.exists() or len(list(threads.iterdir())) == 1, "a fork would lack a thread"
    gc.collect()
    gc.freeze()  # so that collections in forks do not touch, and so copy, all that is imported
    os.fsync = lambda fd: None  # type: ignore[assignment]  # a killed process loses nothing it has written
    jobs = Connection(connection)
    while True:
        try:
            content = jobs.recv_bytes()
        except EOFError:
            return
        jobs.send(run_job(cloudpickle.loads(content)))


def run_job(job: Job) -> tuple[list[RankResult], str]:
    with (
        TemporaryDirectory() as name,
        socket.create_server(("127.0.0.1", 0), backlog=job.world_size) as listener,
    ):
        directory, start = Path(name), time.monotonic()
        pids = {}
        for rank in range(job.world_size):
            pid = os.fork()
            if pid == 0:
                run_rank(rank, job, listener, directory)
            pids[pid] = rank
        results: dict[int, RankResult] = {}
        traces, n_expected = "", job.n_expected
        while len(results) < job.world_size:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in pids:
                file = directory / str(pids[pid])
                output = json.loads(file.read_text()) if file.exists() else None
                results[pids[pid]] = RankResult(os.waitstatus_to_exitcode(status), output)
            elif (is_late := time.monotonic() - start > LIMIT) or len(results) == n_expected:
                for child, rank in pids.items():
                    if rank not in results:
                        trace = (directory / f"{rank}.trace").read_text()
                        traces += f"rank {rank}:\n{trace}\n" if is_late else ""
                        os.kill(child, signal.SIGKILL)
                n_expected, start = None, time.monotonic()
            else:
                time.sleep(0.005)
        return [results[rank] for rank in range(job.world_size)], traces


def run_rank(rank: int, job: Job, listener: socket.socket, directory: Path) -> None:
    faulthandler.dump_traceback_later(LIMIT - TRACE, file=(directory / f"{rank}.trace").open("w"))
    local_size = job.world_size // job.machines
    variables = {
        "RANK": rank,
        "WORLD_SIZE": job.world_size,
        "LOCAL_RANK": rank % local_size,
        "LOCAL_WORLD_SIZE": local_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": listener.getsockname()[1],
        LISTENING_ENV: listener.fileno(),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    os.environ.update({name: str(value) for name, value in variables.items()})
    torch.set_num_threads(1)
    if not job.write_report:
        skip_report()
    code, output = 70, None
    try:
        if job.setup is not None:
            job.setup()
        with init_process_group(job.timeout) as ranks:
            output = job.work(ranks)
        code = 0
    except PeerLostError as error:
        code, output = RANK_LOST, str(error)
    except UserError as error:
        code, output = 2, str(error)
    except BaseException as error:
        output = repr(error)
    temporary = directory / f"{rank}.tmp"
    temporary.write_text(json.dumps(output))
    temporary.rename(directory / str(rank))
    os._exit(code)
