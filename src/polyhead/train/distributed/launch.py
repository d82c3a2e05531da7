"""Launch several processes of one training on this machine, with one exit code. Does not import torch.

torchrun also starts them, but its exit code is 1 whatever failed, its report of a failure is a page long, and
it waits without limit for a process that is stopped.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence

from polyhead.core.errors import UserError
from polyhead.core.i18n import get_language, tr
from polyhead.train.signals import die_with, handle_signals

# environment variables of the launched processes
LAUNCHED_ENV, LISTENING_ENV = "POLYHEAD_LAUNCHED", "POLYHEAD_LISTENING"
RANK_FAILED, RANK_LOST, RANK_INTERRUPTED = 1, 69, 130  # exit codes; LOST: a rank that lost the others
GRACE_SECONDS = 5.0  # seconds for the other processes to end when one has failed
REPORT_SECONDS = 10.0  # seconds after the timeout in which the other processes report a stopped one
LOOPBACK_INTERFACE = "lo"  # network interface between processes of this machine, if it has this name


def count_processes() -> int:
    """Number of processes that train together, from the environment (RANK, WORLD_SIZE)."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1")) if int(os.environ.get("RANK", "-1")) >= 0 else 1
    except ValueError:
        raise UserError(
            "RANK and WORLD_SIZE of the environment must be numbers, as torchrun sets them"
        ) from None


def is_restarted() -> bool:
    """Whether torchrun has restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def launch(arguments: Sequence[str], n_processes: int, timeout: float) -> int:
    """Run ``polyhead train`` with these arguments in ``n_processes`` processes; returns a common exit code.

    Ctrl-C and SIGTERM are forwarded to rank 0, which agrees with the others on the step to stop after. When
    one process fails, or is stopped for longer than ``timeout`` seconds, the others are ended; when this
    process is killed, they save and end.
    """
    if count_processes() > 1:
        raise UserError("--processes: this process is already one of several, started by torchrun or similar")
    children: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []
    pending = deque[int]()  # signals that came before rank 0 was started

    def forward_pending() -> None:
        while children and pending:
            children[0].send_signal(pending.popleft())

    def forward_signal(signum: int, frame: object) -> None:
        signals.append(signum)
        pending.append(signum)
        forward_pending()

    with handle_signals(forward_signal):
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=n_processes) as listener:
                for rank in range(n_processes):
                    children.append(_start_process(arguments, rank, n_processes, listener))
                    forward_pending()
            return _wait_for_all(children, signals, timeout)
        finally:
            for child in children:
                child.kill()
                child.wait()


def hide_torch_warnings() -> None:
    """Hide warnings of torch's C++ part, before torch is imported: of sockets that close, and of speed.

    A failure that matters has a message of ours.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def die_with_launcher() -> None:
    """Save and end this process when its launcher has ended."""
    if LAUNCHED_ENV in os.environ:
        die_with(0)


def _start_process(
    arguments: Sequence[str], rank: int, n_processes: int, listener: socket.socket
) -> subprocess.Popen[bytes]:
    variables = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n_processes, "LOCAL_WORLD_SIZE": n_processes,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": listener.getsockname()[1],
        LAUNCHED_ENV: 1, LISTENING_ENV: listener.fileno(), "POLYHEAD_LANG": get_language(),
    }  # fmt: skip
    environment = os.environ | {name: str(variables[name]) for name in variables}
    if LOOPBACK_INTERFACE in (name for _, name in socket.if_nameindex()):
        environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
    return subprocess.Popen(
        [sys.executable, "-m", "polyhead", "train", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        pass_fds=[] if rank else [listener.fileno()],
        process_group=0,  # so that Ctrl-C at a terminal reaches only the launcher, which forwards it once
    )


def _wait_for_all(
    children: Sequence[subprocess.Popen[bytes]], signals_received: Sequence[int], timeout: float
) -> int:
    """Wait for all processes; returns the exit code of the first that failed.

    After a failure the others have ``GRACE_SECONDS`` to end; stopped ones are not waited for.
    """
    failures: dict[int, int] = {}
    last_alive = [time.monotonic()] * len(children)
    deadline = float("inf")
    while True:
        codes = [child.poll() for child in children]
        failures |= {
            rank: code
            for rank, code in enumerate(codes)
            if code not in (None, 0, RANK_INTERRUPTED) and rank not in failures
        }
        # SIGTERM arrived before the process had installed its handler
        if -signal.SIGTERM in failures.values() and signal.SIGTERM in signals_received:
            return RANK_INTERRUPTED
        deadline = min(deadline, time.monotonic() + GRACE_SECONDS) if failures else deadline
        now, running = time.monotonic(), [rank for rank, code in enumerate(codes) if code is None]
        stopped = [rank for rank in running if _is_stopped(children[rank])]
        last_alive = [last_alive[rank] if rank in stopped else now for rank in range(len(children))]
        # a stopped process does not end by itself
        if (failures and stopped == running) or not running or now > deadline:
            break
        # the others notice it themselves, unless it has not joined them yet
        is_overdue = now - min(last_alive) > timeout + REPORT_SECONDS
        if is_overdue and failures:
            break
        if is_overdue:
            rank = last_alive.index(min(last_alive))
            _print_line(
                tr("rank {rank} is stopped, and so the others were ended; --resume continues", rank=rank)
            )
            return RANK_FAILED
        time.sleep(0.02)
    if RANK_INTERRUPTED in codes:
        return RANK_INTERRUPTED
    if not failures:
        return 0
    rank, code = min(failures.items(), key=lambda item: item[1] == RANK_LOST)
    if code < 0:
        _print_line(
            tr(
                "rank {rank} was terminated by {signal}, and so were the others; --resume continues",
                rank=rank,
                signal=signal.Signals(-code).name,
            )
        )
    elif code == RANK_LOST:
        _print_line(tr("the processes lost their connection; --resume continues"))
    return RANK_FAILED if code < 0 or code == RANK_LOST else code


def _is_stopped(child: subprocess.Popen[bytes]) -> bool:
    """Whether a process is stopped, as by SIGSTOP."""
    flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, child.pid, flags) is not None
    except ChildProcessError:  # it has ended since, and somebody else has waited for it
        return False


def _print_line(line: str) -> None:
    print(f"polyhead: {line}", file=sys.stderr, flush=True)
