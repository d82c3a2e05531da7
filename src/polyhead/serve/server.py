"""The process: it listens, serves, and ends in good order."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from polyhead.serve.app import App
from polyhead.serve.service import Service
from polyhead.serve.wire import protocol

# seconds a thread keeps Python from the other; with the usual 5 ms a stream of a small model is three times as slow
TURN = 0.0005


class Server(uvicorn.Server):
    """At the first signal it takes nothing new, lets what was accepted end, and leaves; at the second it leaves at once."""

    def __init__(self, service: Service, ready: Callable[[], None]) -> None:
        self.service, self.app, self.ready = service, App(service), ready
        self.leaves_at = float("inf")
        limits = service.limits
        super().__init__(uvicorn.Config(
            self.app, http=protocol(limits), ws="none", loop="asyncio", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, h11_max_incomplete_event_size=limits.header, timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
        ))  # fmt: skip

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.start()
        await super().startup(sockets)
        self.ready()

    async def on_tick(self, counter: int) -> bool:
        if self.service.draining:
            late = time.monotonic() - self.leaves_at
            if late > 0:
                for task in list(self.app.active):
                    task.cancel("the time to end has passed")
            read = not any(c.transport.get_write_buffer_size() for c in self.server_state.connections)
            self.should_exit = (read and not self.app.active) or late > 2
        return await super().on_tick(counter)

    def drain(self) -> None:
        """Take nothing new and leave when all that was accepted has been answered, or the grace is over."""
        if not self.service.draining:
            self.leaves_at = time.monotonic() + self.service.limits.grace
            self.service.draining = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.draining:
            os._exit(128 + sig)
        self.drain()


def collect_rarely() -> None:
    """Keep the search for cyclic garbage short and rare: it holds up every thread, for a fifth of a second where it looks at all.

    What is there when the service begins stays, so it is not looked at again. Requests leave nothing in cycles, so
    rarely is often enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def serve(service: Service, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal says to stop."""
    sys.setswitchinterval(TURN)
    collect_rarely()
    Server(service, ready).run([sock])
    service.close()
    if service.driver is not None:
        service.driver.join(timeout=5)
    if any(thread.name.startswith("polyhead") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a thread inside the model cannot be stopped, and Python would wait for it or crash
