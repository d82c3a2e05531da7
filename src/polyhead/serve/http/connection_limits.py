"""Limits of a connection that neither uvicorn nor an ASGI application can enforce.

ASGI begins when a request head is complete. Before that uvicorn has no deadline and no limit of
connections, and it answers malformed HTTP in plain text. Later it has no deadline for a client that does not
read its response, and it stops reading when the next request waits, so that it does not notice a disconnect.
"""

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
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from polyhead.serve.api_errors import ApiError, head_too_large_error, too_many_connections_error
from polyhead.serve.http.http_exchange import dump_json
from polyhead.serve.limits import Limits

# socket buffer for a client that does not read; the default may be megabytes
SEND_BUFFER_BYTES = 2**16
# connections beyond the limit, on which a health check is answered, and the seconds to receive its head
RESERVED_CONNECTIONS, RESERVED_TIMEOUT = 16, 1.0
# seconds in which a client may send the rest of what was refused, so that it reads the error
LINGER_TIMEOUT = 2.0
# how uvicorn's response to malformed HTTP starts; responses of the application start with a date
UVICORN_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain"


class LimitedConnection(asyncio.Protocol):
    """Connection of a client: the protocol of asyncio's transport, and the transport of uvicorn's protocol.

    A slow request head and a client that does not read its response have a deadline; then the connection
    is aborted, which also cancels its computation. A few connections beyond the limit are accepted, but only
    for a health check: the oldest of them gives way to a new one. The application finds the connection in
    the state of its scope and reports the start and the end of each request.
    """

    def __init__(
        self,
        limits: Limits,
        reserved_connections: dict[LimitedConnection, None],
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: Any,
    ) -> None:
        self._limits, self._server_state = limits, server_state
        # connections beyond the limit that wait for their first head, oldest first
        self._reserved = reserved_connections
        self._uvicorn: Any = H11Protocol(config, server_state, app_state | {"connection": self}, _loop)
        self._transport: asyncio.Transport
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_idle = True  # no request is being answered
        self.is_reserved = False  # beyond the limit of connections: only for a health check
        self._is_refused = False  # an error was sent for what is no request; what still comes is discarded
        self._num_ahead: int | None = None  # bytes received since uvicorn paused reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def start_request(self) -> None:
        """A request head is complete."""
        self._is_idle = False
        self._reserved.pop(self, None)
        self._stop_timer("head")

    def finish_request(self) -> None:
        """The response is complete."""
        self._is_idle = True
        if self.is_reserved:
            self._transport.close()

    def refuse(self) -> None:
        """Refuse a connection beyond the limit that has sent no request yet."""
        self._reserved.pop(self, None)
        self._send_error(too_many_connections_error())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._uvicorn.connection_made(self)
        if len(self._server_state.connections) > self._limits.max_connections:
            self.is_reserved = True
            if len(self._reserved) >= RESERVED_CONNECTIONS:
                next(iter(self._reserved)).refuse()
            self._reserved[self] = None
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        transport.set_write_buffer_limits(high=0)  # a deadline for all that the socket does not take
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer("head")
        self._stop_timer("write")
        self._stop_timer("linger")
        self._reserved.pop(self, None)
        self._uvicorn.connection_lost(None)  # with an error its keep-alive timer would not be stopped
        # reference cycles would keep requests and responses alive until the next garbage collection
        self._uvicorn = None
        vars(self._transport).pop("_read_ready_cb", None)  # a self-reference of asyncio's transport

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_idle:
            self._start_head_timer()
        try:
            self._uvicorn.data_received(data)
        except h11.LocalProtocolError:  # malformed, and too late for an error: a response has started
            self._transport.close()
        if self._num_ahead is not None:
            self._num_ahead += len(data)
            if self._num_ahead > self._limits.max_header:
                self._transport.pause_reading()

    def eof_received(self) -> None:
        if not self._is_refused:
            self._uvicorn.eof_received()

    def pause_writing(self) -> None:
        self._uvicorn.pause_writing()
        self._watch_writes()

    def resume_writing(self) -> None:
        self._uvicorn.resume_writing()
        self._stop_timer("write")

    def pause_reading(self) -> None:
        """Read no more than one more head: without reading, a disconnect is not noticed."""
        self._num_ahead = 0

    def resume_reading(self) -> None:
        self._num_ahead = None
        self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Write data of uvicorn; its response to malformed HTTP is replaced by the error envelope."""
        if data.startswith(UVICORN_BAD_REQUEST):
            error = sys.exception()  # uvicorn calls this while it handles the error of h11
            if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
                self._send_error(head_too_large_error(self._limits.max_header))
            else:
                self._send_error(ApiError(400, "bad_http", "this is not an HTTP request"))
        elif not self._is_refused and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection; after an error only once the client has had time to read it."""
        if not self._is_refused:
            self._transport.close()

    def _start_head_timer(self) -> None:
        if self.is_reserved:
            self._start_timer("head", RESERVED_TIMEOUT, self.refuse)
        else:
            self._start_timer("head", self._limits.header_timeout, self._transport.abort)

    def _start_timer(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        """Start a timer, unless it runs already."""
        if name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, action)

    def _stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def _watch_writes(self) -> None:
        """Abort the connection if the client reads nothing for ``write_timeout`` seconds."""
        previous = count_unread_bytes(self._transport)

        def check_progress() -> None:
            self._stop_timer("write")
            if count_unread_bytes(self._transport) < previous:
                self._watch_writes()
            else:
                self._transport.abort()

        self._start_timer("write", self._limits.write_timeout, check_progress)

    def _send_error(self, error: ApiError) -> None:
        """Send an error for data that is no valid request, and close the connection.

        Closing a socket with unread data resets the connection, and the client would lose the error: within
        the limit of connections, what else it sends is discarded until it closes its end, or for a moment.
        """
        body = dump_json(error.envelope)
        head = (
            f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        )
        self._is_refused = True
        self._stop_timer("head")
        self._transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        if self.is_reserved:
            self._transport.close()
        else:
            self._transport.write_eof()
            self._start_timer("linger", LINGER_TIMEOUT, self._transport.abort)


def count_unread_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes of the response in our buffer and, where the OS reports it, in the socket buffer."""
    buffered = bytes(4)
    with suppress(OSError):
        buffered = ioctl(transport.get_extra_info("socket"), TIOCOUTQ, buffered)
    return transport.get_write_buffer_size() + int.from_bytes(buffered, sys.byteorder)
