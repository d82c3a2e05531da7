"""Limits of a connection that uvicorn does not enforce: timeouts, and errors in our envelope."""

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

from polyhead.serve.http.errors import ApiError
from polyhead.serve.http.limits import Limits
from polyhead.serve.http.strict_json import dump_json

# socket buffer for a client that does not read; the default may be megabytes
SEND_BUFFER_BYTES = 2**16


def make_protocol(limits: Limits) -> type[H11Protocol]:
    """Return the HTTP protocol class with these limits.

    Slow headers, a body that is no longer needed and a client that does not read its response each have a
    deadline; then the connection is aborted, which also cancels its computation.
    """

    class LimitedHttpProtocol(H11Protocol):
        _read_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None
        _is_lingering = False
        _lingering_transport: LingeringTransport

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._lingering_transport = LingeringTransport(transport, self._start_lingering)
            super().connection_made(self._lingering_transport)  # type: ignore[arg-type]
            if len(self.connections) > limits.connections:
                self._send_error(ApiError(503, "too_many_connections", "too many connections are open"))
                return
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            transport.set_write_buffer_limits(high=0)  # a deadline for all that the socket does not take
            self._read_timer = self.loop.call_later(limits.header_timeout, self._abort_connection)

        def data_received(self, data: bytes) -> None:
            if self._is_lingering:
                return
            super().data_received(data)
            self._update_read_timer()
            if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) < limits.header:
                self.flow.resume_reading()  # else a disconnect after pipelined data is not noticed

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._update_read_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._read_timer = cancel_timer(self._read_timer)
            self._write_timer = cancel_timer(self._write_timer)
            self._unset_keepalive_if_required()  # after an error it would keep the connection until it fires
            super().connection_lost(exc)
            self._lingering_transport.release()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._write_timer is None:
                self._watch_writes()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._write_timer = cancel_timer(self._write_timer)

        def send_400_response(self, msg: str) -> None:
            self._send_error(
                ApiError(400, "bad_http", "this is not an HTTP request, or its head is too large")
            )

        def _update_read_timer(self) -> None:
            """Start or stop the deadline for data that the client is sending."""
            has_partial_head = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            is_answered = self.conn.our_state in (h11.DONE, h11.CLOSED)
            has_unread_body = is_answered and self.conn.their_state is h11.SEND_BODY
            if not (has_partial_head or has_unread_body):
                self._read_timer = cancel_timer(self._read_timer)
            elif self._read_timer is None:
                self._read_timer = self.loop.call_later(
                    limits.header_timeout if has_partial_head else limits.body_timeout, self._abort_connection
                )
            if self._is_idle() and self.timeout_keep_alive_task is None:  # late data has stopped it
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

        def _start_lingering(self) -> bool:
            """Return whether a request body is still arriving after the last response.

            If so, it is read and discarded for a while: closing a socket with unread data resets the
            connection, and the client would lose the response.
            """
            if self._is_lingering or self.conn.their_state is not h11.SEND_BODY:
                return False
            self._is_lingering = True
            self.transport.write_eof()
            self.transport.resume_reading()
            return True

        def _is_idle(self) -> bool:
            """Whether all requests are answered and no further data has arrived."""
            answered = self.cycle is not None and self.cycle.response_complete
            idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
            return answered and idle and not self.transport.is_closing()

        def _watch_writes(self) -> None:
            """Abort the connection if the client reads nothing for ``write_timeout`` seconds."""
            previous = count_unread_bytes(self.transport)

            def check_progress() -> None:
                self._watch_writes() if count_unread_bytes(
                    self.transport
                ) < previous else self._abort_connection()

            self._write_timer = self.loop.call_later(limits.write_timeout, check_progress)

        def _send_error(self, error: ApiError) -> None:
            """Send an error for data that is no valid request, and close the connection."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                body = dump_json(error.envelope)
                headers = [
                    ("content-type", "application/json"),
                    ("content-length", str(len(body))),
                    ("connection", "close"),
                ]
                for event in (
                    h11.Response(status_code=error.status, headers=headers),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _abort_connection(self) -> None:
            self.transport.abort()

    return LimitedHttpProtocol


class LingeringTransport:
    """Transport whose ``close`` is deferred while ``start_lingering`` returns True."""

    def __init__(self, transport: asyncio.Transport, start_lingering: Callable[[], bool]) -> None:
        self._transport, self._start_lingering = transport, start_lingering

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if not self._start_lingering():
            self._transport.close()

    def release(self) -> None:
        """Drop the references to the connection.

        A reference cycle would keep requests and responses alive until the next garbage collection.
        """
        self._start_lingering = lambda: False
        vars(self._transport).pop("_read_ready_cb", None)  # a self-reference of asyncio's transport


def count_unread_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes of the response in our buffer and, where the OS reports it, in the socket buffer."""
    buffered = bytes(4)
    with suppress(OSError):
        buffered = ioctl(transport.get_extra_info("socket"), TIOCOUTQ, buffered)
    return transport.get_write_buffer_size() + int.from_bytes(buffered, sys.byteorder)


def cancel_timer(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel the timer and return None."""
    if timer is not None:
        timer.cancel()
    return None
