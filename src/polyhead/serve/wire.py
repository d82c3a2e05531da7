"""What a connection may take: bounds of time that the HTTP server itself does not keep, and refusals in our envelope."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyhead.serve.limits import Limits
from polyhead.serve.refusal import Refusal
from polyhead.serve.strict import dump

# bytes that the system keeps for a client who does not read; without a bound it would be megabytes
UNREAD = 2**16


def protocol(limits: Limits) -> type[H11Protocol]:
    """The protocol of a connection, with these limits.

    A head that comes byte by byte, a body that nobody waits for any more and a client that does not read its answer
    each have a deadline, after which the connection is cut; whatever is being computed for it then ends as well.
    """

    class Bounded(H11Protocol):
        _reads: asyncio.TimerHandle | None = None
        _writes: asyncio.TimerHandle | None = None
        _lingers = False
        _closing: Closing

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._closing = Closing(transport, self._linger)
            super().connection_made(self._closing)  # type: ignore[arg-type]
            if len(self.connections) > limits.connections:
                self._refuse(Refusal(503, "too_many_connections", "too many connections are open"))
                return
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)
            transport.set_write_buffer_limits(high=0)  # whatever the system does not take has its deadline
            self._reads = self.loop.call_later(limits.header_timeout, self._cut)

        def data_received(self, data: bytes) -> None:
            if self._lingers:
                return
            super().data_received(data)
            self._look()
            if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) < limits.header:
                self.flow.resume_reading()  # else one who has sent more and leaves would not be noticed

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._reads = stopped(self._reads)
            self._writes = stopped(self._writes)
            self._unset_keepalive_if_required()  # left alone after an error, it would keep all this for its time
            super().connection_lost(exc)
            self._closing.lost()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._writes is None:
                self._watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._writes = stopped(self._writes)

        def send_400_response(self, msg: str) -> None:
            self._refuse(Refusal(400, "bad_http", "this is not an HTTP request, or its head is too large"))

        def _look(self) -> None:
            """Set or stop the deadline of what the client is sending."""
            begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            said = self.conn.our_state in (h11.DONE, h11.CLOSED)
            rest = said and self.conn.their_state is h11.SEND_BODY
            if not (begun or rest):
                self._reads = stopped(self._reads)
            elif self._reads is None:
                self._reads = self.loop.call_later(
                    limits.header_timeout if begun else limits.body_timeout, self._cut
                )
            if self._rests() and self.timeout_keep_alive_task is None:  # what came late has stopped it
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

        def _linger(self) -> bool:
            """Whether a body is still coming behind the last answer: it is read for a while, and thrown away.

            A socket that is closed over what it has not read is reset, and the answer would be lost with it.
            """
            if self._lingers or self.conn.their_state is not h11.SEND_BODY:
                return False
            self._lingers = True
            self.transport.write_eof()
            self.transport.resume_reading()
            return True

        def _rests(self) -> bool:
            """Whether all that was asked has been answered, and nothing more has come."""
            answered = self.cycle is not None and self.cycle.response_complete
            idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
            return answered and idle and not self.transport.is_closing()

        def _watch(self) -> None:
            """Cut the connection when nothing more has been read of what lies ready for as long as that may be."""
            before = unread(self.transport)

            def late() -> None:
                self._watch() if unread(self.transport) < before else self._cut()

            self._writes = self.loop.call_later(limits.write_timeout, late)

        def _refuse(self, refusal: Refusal) -> None:
            """Answer what never became a request, and hang up."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                body = dump(refusal.envelope)
                headers = [
                    ("content-type", "application/json"),
                    ("content-length", str(len(body))),
                    ("connection", "close"),
                ]
                for event in (
                    h11.Response(status_code=refusal.status, headers=headers),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _cut(self) -> None:
            self.transport.abort()

    return Bounded


class Closing:
    """A transport that is closed when nothing ``lingers``, and else by who lingers."""

    def __init__(self, transport: asyncio.Transport, lingers: Callable[[], bool]) -> None:
        self._transport, self._lingers = transport, lingers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if not self._lingers():
            self._transport.close()

    def lost(self) -> None:
        """Know the connection no more: what knows each other waits for Python's search, with all that was asked and answered."""
        self._lingers = lambda: False
        vars(self._transport).pop("_read_ready_cb", None)  # asyncio's transport knows itself by this method


def unread(transport: asyncio.Transport) -> int:
    """Bytes of an answer that lie here and, where the system tells, with the system."""
    kept = bytes(4)
    with suppress(OSError):
        kept = ioctl(transport.get_extra_info("socket"), TIOCOUTQ, kept)
    return transport.get_write_buffer_size() + int.from_bytes(kept, sys.byteorder)


def stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer any more."""
    if timer is not None:
        timer.cancel()
    return None
