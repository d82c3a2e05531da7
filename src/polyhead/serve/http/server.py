"""The server process: listen, serve and shut down gracefully."""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn

from polyhead.serve.http.app import App
from polyhead.serve.http.connection_limits import LimitedConnection

# seconds a thread holds the GIL; with the default of 5 ms a stream of a small model is three times as slow
SWITCH_INTERVAL = 0.0005
OTHER_FILES = 256  # open files besides connections within their limit


class Server(uvicorn.Server):
    """HTTP server with graceful shutdown.

    The first signal stops new requests, and the process ends when accepted ones have finished; the second one
    ends it at once.
    """

    def __init__(self, app: App, on_ready: Callable[[], None]) -> None:
        self.service, self.app, self.on_ready = app.service, app, on_ready
        self.exit_deadline = float("inf")
        limits = self.service.limits
        config = uvicorn.Config(
            self.app.handler,
            http=partial(LimitedConnection, limits, {}),  # type: ignore[arg-type]  # called like a class
            loop="asyncio", lifespan="off", ws="none", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, h11_max_incomplete_event_size=limits.max_header, timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
        )  # fmt: skip
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.start()
        await super().startup(sockets)
        self.on_ready()

    async def on_tick(self, counter: int) -> bool:
        if self.service.is_draining:
            overdue = time.monotonic() - self.exit_deadline
            if overdue > 0:
                for task in list(self.app.active_tasks):
                    task.cancel("the shutdown timeout has passed")
            is_flushed = not any(c.transport.get_write_buffer_size() for c in self.server_state.connections)
            self.should_exit = (is_flushed and not self.app.active_tasks) or overdue > 2
        return await super().on_tick(counter)

    def drain(self) -> None:
        """Accept no new requests; stop when the accepted ones are answered or time is up."""
        if not self.service.is_draining:
            self.exit_deadline = time.monotonic() + self.service.limits.shutdown_timeout
            self.service.is_draining = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.is_draining:
            os._exit(128 + sig)
        self.drain()


def tune_gc() -> None:
    """Make garbage collections short and rare: a full one blocks every thread for a fifth of a second.

    Objects that exist at startup are frozen, so they are not scanned. Requests leave no reference cycles, so
    rare collections suffice.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def raise_file_limit(n_files: int) -> None:
    """Raise the soft limit of open files to ``n_files``, as far as the hard limit allows.

    It is often 1,024, as many as the connections: without a file for it, no connection is accepted.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < n_files:
        n_files = n_files if hard == resource.RLIM_INFINITY else min(n_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n_files), hard))


def run_server(app: App, sock: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal stops the process."""
    service = app.service
    sys.setswitchinterval(SWITCH_INTERVAL)
    tune_gc()
    raise_file_limit(service.limits.max_connections + OTHER_FILES)
    Server(app, on_ready).run([sock])
    service.close()
    if service.engine_thread is not None:
        service.engine_thread.join(timeout=5)
    if any(thread.name.startswith("polyhead") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a thread inside the model cannot be stopped; a normal exit would hang or crash
