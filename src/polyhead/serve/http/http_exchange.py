"""One HTTP request and its response: read within limits, answered once, as JSON or as server-sent events.

JSON is strict, both ways: no NaN, no duplicate keys, no lone surrogates.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polyhead.core.errors import UserError
from polyhead.core.json_io import decode_json
from polyhead.serve.api_errors import ApiError, head_too_large_error, too_many_connections_error
from polyhead.serve.limits import Limits

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
HEALTH_PATH = "/health"
MAX_WARNINGS = 4  # maximum number of warnings in the header
STREAM_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


class HttpExchange:
    """A request, and the methods to answer it.

    Its id is the client's X-Request-Id if that is valid, else a random one.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self._receive, self._send, self._limits = receive, send, limits
        self.request = Request(scope)
        self._connection = scope["state"]["connection"]
        self._connection.start_request()
        headers = self.request.headers
        client_id = headers.get("x-request-id", "")
        self.id = client_id if REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex
        # a connection beyond the limit is closed at once
        self.has_unread_body = not self._connection.is_reserved and (
            "content-length" in headers or "transfer-encoding" in headers
        )
        self.status = 0  # of the response; 0 before it has started
        self.is_streaming = False  # responds with server-sent events
        # the client has disconnected; the response was sent completely
        self.is_disconnected = self.is_complete = False
        self.warnings: list[str] = []

    def check_head(self) -> None:
        """Reject headers that are too large, which uvicorn accepts if they arrive in one chunk.

        On a connection beyond the limit, everything but a health check is rejected.
        """
        if self._connection.is_reserved and not self.request.url.path.startswith(HEALTH_PATH):
            raise too_many_connections_error()
        scope = self.request.scope
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if size > self._limits.max_header:
            raise head_too_large_error(self._limits.max_header)

    async def read_body(self) -> bytes:
        """Read the body, which must be JSON."""
        headers, limits = self.request.headers, self._limits
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # also prevents cross-site form posts
            raise ApiError(415, "unsupported_media_type", "expected: Content-Type: application/json")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "unsupported_encoding", "the body must not be compressed")
        self._check_body_size(int(headers.get("content-length", "0")))
        content = bytearray()
        try:
            async with asyncio.timeout(limits.body_timeout):
                async for chunk in self._iter_body():
                    content += chunk
                    self._check_body_size(len(content))
        except TimeoutError:
            raise ApiError(
                408, "body_too_slow", f"the body was not received within {limits.body_timeout:g} s"
            ) from None
        return bytes(content)

    async def _iter_body(self) -> AsyncIterator[bytes]:
        while self.has_unread_body:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self.has_unread_body = message.get("more_body", False)
            yield message.get("body", b"")

    def _check_body_size(self, size: int) -> None:
        if size > self._limits.max_body:
            raise ApiError(413, "body_too_large", f"the body is larger than {self._limits.max_body:,} bytes")

    async def wait_disconnected(self) -> None:
        """Return when the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_disconnected = True

    async def send_json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a JSON response; bytes are encoded already."""
        content = value if isinstance(value, bytes) else dump_json(value)
        await self.send(Response(content, status, headers, "application/json"))

    async def send(self, response: Response) -> None:
        """Send a complete response."""
        await self._start(response.status_code, response.raw_headers)
        await self._finish(bytes(response.body))

    async def start_stream(self) -> None:
        """Start a response of server-sent events."""
        self.is_streaming = True
        await self._start(200, Headers(STREAM_HEADERS).raw)

    async def send_events(self, values: Iterable[Any]) -> None:
        """Send events in one write.

        Without any, a comment that clients ignore, so that proxies do not close an idle connection.
        """
        content = b"".join(map(_encode_event, values)) or b": still working\n\n"
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def end_stream(self) -> None:
        """Send the end marker and finish the response."""
        await self._finish(b"data: [DONE]\n\n")

    async def send_error(self, error: ApiError) -> None:
        """Send an error: as a response, or as the last event of a stream that has started."""
        if self.is_streaming and not self.is_complete:
            await self._finish(_encode_event(error.envelope))
        elif not self.status:
            await self.send_json(error.envelope, error.status, error.headers)

    async def discard_body(self) -> None:
        """Read and discard what is left of the request body after the response, then finish the response.

        Closing a socket with unread data resets the connection, and the client would lose the response. If
        the body does not end in time, the response stays unfinished, so that uvicorn closes the connection.
        """
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(self._limits.body_timeout):
                async for _ in self._iter_body():
                    pass
            await self._finish(b"")

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        fields = {"x-request-id": self.id, "x-content-type-options": "nosniff"}
        if self._connection.is_reserved:
            fields["connection"] = "close"
        if self.warnings:
            fields["x-warnings"] = "; ".join(map(_header_text, self.warnings[:MAX_WARNINGS]))
        message = {"type": "http.response.start", "status": status, "headers": Headers(fields).raw + headers}
        await self._send(message)

    async def _finish(self, content: bytes) -> None:
        """Send the end of the response; ``discard_body`` finishes it if the request body was not read."""
        message = {"type": "http.response.body", "body": content, "more_body": self.has_unread_body}
        await self._send(message)
        self.is_complete = not self.is_disconnected  # writes after a disconnect are dropped silently
        if not self.has_unread_body:
            self._connection.finish_request()


def _encode_event(value: Any) -> bytes:
    return b"data: " + dump_json(value) + b"\n\n"


def _header_text(text: str) -> str:
    """Replace characters that a header cannot contain."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:200]


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request body; the error states in one line what is wrong."""
    try:
        value = decode_json(body.decode(), "the body", is_strict=True)
    except UnicodeDecodeError:
        raise ApiError(400, "invalid_json", "the body is not UTF-8") from None
    except UserError as error:
        raise ApiError(400, "invalid_json", str(error)[:300]) from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", 'the body must be a JSON object, such as {"input": "..."}')
    return value


def dump_json(value: Any) -> bytes:
    """Encode as compact JSON; NaN or infinity is a defect and raises ValueError."""
    return _encode(value).encode()


def dump_json_list(fields: dict[str, Any], key: str, items: Iterable[Any]) -> bytes:
    """Encode an object of fields and, under ``key``, a list.

    The items are encoded one by one: the encoder holds the interpreter for the whole of a value, which for
    the embeddings of thousands of texts is a second in which no other thread runs.
    """
    encoded = b",".join(map(dump_json, items))
    return b"%s,%s:[%s]}" % (dump_json(fields)[:-1], dump_json(key), encoded)


def finite_or_none(value: float) -> float | None:
    """Return a log-probability, or None if it is not finite (JSON has no infinity)."""
    return value if math.isfinite(value) else None
