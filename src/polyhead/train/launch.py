"""Several processes of one training on this machine: started together, stopped together, one exit code. No torch here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from polyhead.core.i18n import tr
from polyhead.errors import UserError
from polyhead.train.signals import end_with, handled

LAUNCHED, LISTENING = "POLYHEAD_LAUNCHED", "POLYHEAD_LISTENING"  # in the environment of those started here
FAILED, LOST, INTERRUPTED = 1, 69, 130  # exit codes; that of a rank which only knows that others are gone
GRACE = 10.0  # seconds in which the others may end by themselves when one has failed
LOOPBACK = "lo"  # by which processes of one machine talk, where it is called so


def processes() -> int:
    """How many processes train together, as the environment of this one says."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1")) if int(os.environ.get("RANK", "-1")) >= 0 else 1
    except ValueError:
        raise UserError(
            "RANK and WORLD_SIZE of the environment must be numbers, as torchrun sets them"
        ) from None


def restarted() -> bool:
    """Whether torchrun has started this process again, after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def launch(arguments: Sequence[str], count: int) -> int:
    """Run ``polyhead train`` with these arguments in so many processes; returns the exit code of all of them.

    Ctrl-C and SIGTERM go to the first, which agrees with the others on the step to stop after. When one fails, the
    others are ended; when this process is killed, they save and end.
    """
    if processes() > 1:
        raise UserError(
            "--processes: this is one of several processes already, started by torchrun or the like"
        )
    children: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def forward(number: int, frame: object) -> None:
        asked.append(number)
        for child in children[:1]:
            child.send_signal(number)

    with handled(forward):
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=count) as listener:
                children += [_start(arguments, rank, count, listener) for rank in range(count)]
            return _ended(children, asked)
        finally:
            for child in children:
                child.kill()
                child.wait()


def end_with_launcher() -> None:
    """Save and end when the process that started this one is gone."""
    if LAUNCHED in os.environ:
        end_with(0)


def _start(
    arguments: Sequence[str], rank: int, count: int, listener: socket.socket
) -> subprocess.Popen[bytes]:
    told = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": listener.getsockname()[1],
        LAUNCHED: 1, LISTENING: listener.fileno(),
    }  # fmt: skip
    environment = {"TORCH_CPP_LOG_LEVEL": "ERROR"} | os.environ | {name: str(told[name]) for name in told}
    if LOOPBACK in (name for _, name in socket.if_nameindex()):
        environment.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    return subprocess.Popen(
        [sys.executable, "-m", "polyhead", "train", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        pass_fds=[] if rank else [listener.fileno()],
        process_group=0,  # a terminal's Ctrl-C comes to this process alone, which passes it on once
    )


def _ended(children: Sequence[subprocess.Popen[bytes]], asked: Sequence[int]) -> int:
    """Wait for all, but not for ever once one has failed; returns the exit code of the one that failed first."""
    failed: dict[int, int] = {}
    until = float("inf")
    while True:
        codes = [child.poll() for child in children]
        failed |= {
            rank: code
            for rank, code in enumerate(codes)
            if code not in (None, 0, INTERRUPTED) and rank not in failed
        }
        # before it could answer in good order
        if -signal.SIGTERM in failed.values() and signal.SIGTERM in asked:
            return INTERRUPTED
        until = min(until, time.monotonic() + GRACE) if failed else until
        if None not in codes or time.monotonic() > until:
            break
        time.sleep(0.02)
    if INTERRUPTED in codes:
        return INTERRUPTED
    if not failed:
        return 0
    rank, code = min(failed.items(), key=lambda item: item[1] == LOST)
    if code < 0:
        _say(
            tr(
                "rank {rank} was ended by {signal}, and so were the others; --resume goes on",
                rank=rank,
                signal=signal.Signals(-code).name,
            )
        )
    elif code == LOST:
        _say(tr("the processes lost each other; --resume goes on"))
    return FAILED if code < 0 or code == LOST else code


def _say(line: str) -> None:
    print(f"polyhead: {line}", file=sys.stderr, flush=True)
