"""One HTTP request and its response: read within limits, answered once, as JSON or as server-sent events."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from polyhead.serve.http.errors import ApiError
from polyhead.serve.http.limits import Limits
from polyhead.serve.http.strict_json import dump_json, parse_json

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
MAX_WARNINGS = 4  # maximum number of warnings in the header


class HttpExchange:
    """A request, and the methods to answer it.

    Its id is the client's X-Request-Id if that is valid, else a random one.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method, self.path = str(scope["method"]), str(scope["path"])
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._head_bytes = len(scope.get("raw_path") or self.path) + len(scope["query_string"])
        self._head_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        self._receive, self._send = receive, send
        client_id = self.headers.get("x-request-id", "")
        self.id = client_id if REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        self.status = 0  # of the response; 0 before it has started
        self.is_streaming = False  # responds with server-sent events
        # the client has disconnected; the response was sent completely
        self.is_disconnected = self.is_complete = False
        # the last event of a failed stream
        self.make_error_event: Callable[[ApiError], Any] = lambda refusal: refusal.envelope
        self.warnings: list[str] = []

    def check_head(self, limits: Limits) -> None:
        """Reject headers that are too large; uvicorn accepts them if they arrive in one chunk."""
        if self._head_bytes > limits.header:
            raise ApiError(431, "head_too_large", f"the head is larger than {limits.header:,} bytes")

    async def read_body(self, limits: Limits) -> dict[str, Any]:
        """Read the body and parse its JSON object."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # also prevents cross-site form posts
            raise ApiError(415, "unsupported_media_type", "wanted: Content-Type: application/json")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "unsupported_encoding", "the body must not be compressed")
        length = self.headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limits.body:
            raise _body_too_large_error(limits)
        content = bytearray()
        try:
            async with asyncio.timeout(limits.body_timeout):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    content += message.get("body", b"")
                    if len(content) > limits.body:
                        raise _body_too_large_error(limits)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise ApiError(
                408, "body_too_slow", f"the body did not come within {limits.body_timeout:g} s"
            ) from None
        return parse_json(bytes(content))

    async def wait_disconnected(self) -> None:
        """Return when the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_disconnected = True

    async def send_json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a JSON response."""
        await self.send(dump_json(value), "application/json", status, headers)

    async def send(
        self, content: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a complete response."""
        await self._start(
            status, {"content-type": content_type, "content-length": str(len(content)), **(headers or {})}
        )
        await self._write(content, has_more=False)

    async def start_stream(self) -> None:
        """Start a response of server-sent events."""
        self.is_streaming = True
        await self._start(
            200, {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
        )

    async def send_events(self, values: Iterable[Any]) -> None:
        """Send events in one write; a value with ``type`` becomes an event of that name."""
        await self._write(b"".join(map(_encode_event, values)))

    async def send_keepalive(self) -> None:
        """Send a comment that clients ignore, so that proxies do not close an idle connection."""
        await self._write(b": still working\n\n")

    async def end_stream(self, end_marker: bytes = b"data: [DONE]\n\n") -> None:
        """Send the end marker and finish the response."""
        await self._write(end_marker)
        await self._write(b"", has_more=False)

    async def send_error(self, error: ApiError) -> None:
        """Send an error: as a response, or as the last event of a stream that has started."""
        if self.is_streaming and not self.is_complete:
            await self.send_events([self.make_error_event(error)])
            await self._write(b"", has_more=False)
        elif not self.status:
            await self.send_json(error.envelope, error.status, error.headers)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        fields = {"x-request-id": self.id, "x-content-type-options": "nosniff", **headers}
        if self.warnings:
            fields["x-warnings"] = "; ".join(map(_header_text, self.warnings[:MAX_WARNINGS]))
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _write(self, content: bytes, has_more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": has_more})
        # writes after a disconnect are dropped silently
        self.is_complete = not (has_more or self.is_disconnected)


class ClientDisconnected(Exception):
    """The client has disconnected before it was answered."""


def _body_too_large_error(limits: Limits) -> ApiError:
    return ApiError(413, "body_too_large", f"the body is larger than {limits.body:,} bytes")


def _encode_event(value: Any) -> bytes:
    name = f"event: {value['type']}\n".encode() if "type" in value else b""
    return name + b"data: " + dump_json(value) + b"\n\n"


def _header_text(text: str) -> str:
    """Replace characters that a header cannot contain."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:200]
