"""One HTTP request and its answer: read within bounds, answered once, as JSON or as events."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from polyhead.serve.limits import Limits
from polyhead.serve.refusal import Refusal
from polyhead.serve.strict import dump, parse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
WARNINGS = 4  # told in a header at most


class Call:
    """A request: what came, and the way to answer. Its id is the client's if that is a plain word, else one of ours."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method, self.path = str(scope["method"]), str(scope["path"])
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._head = len(scope.get("raw_path") or self.path) + len(scope["query_string"])
        self._head += sum(len(name) + len(value) for name, value in scope["headers"])
        self._receive, self._send = receive, send
        given = self.headers.get("x-request-id", "")
        self.id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self.code = 0  # of the answer, once it has begun
        self.streams = False  # answers by events
        self.left = self.whole = False  # the client has left; it was answered to the end before
        self.broken: Callable[[Refusal], Any] = lambda refusal: (
            refusal.envelope
        )  # the last event, if it comes to that
        self.warnings: list[str] = []

    def check_head(self, limits: Limits) -> None:
        """Refuse a head that is too large, which the server lets through where it comes in one piece."""
        if self._head > limits.header:
            raise Refusal(431, "head_too_large", f"the head is larger than {limits.header:,} bytes")

    async def body(self, limits: Limits) -> dict[str, Any]:
        """The JSON object of the request."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which also keeps other sites' forms from posting here
            raise Refusal(415, "unsupported_media_type", "wanted: Content-Type: application/json")
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "unsupported_encoding", "the body must not be compressed")
        length = self.headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limits.body:
            raise _too_large(limits)
        content = bytearray()
        try:
            async with asyncio.timeout(limits.body_timeout):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    content += message.get("body", b"")
                    if len(content) > limits.body:
                        raise _too_large(limits)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise Refusal(
                408, "body_too_slow", f"the body did not come within {limits.body_timeout:g} s"
            ) from None
        return parse(bytes(content))

    async def gone(self) -> None:
        """Return when the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True

    async def reply(self, value: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """The answer, as JSON."""
        await self.send(dump(value), "application/json", code, headers)

    async def send(
        self, content: bytes, kind: str, code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """The answer, whole."""
        await self._start(
            code, {"content-type": kind, "content-length": str(len(content)), **(headers or {})}
        )
        await self._write(content, more=False)

    async def open(self) -> None:
        """Begin an answer of events."""
        self.streams = True
        await self._start(
            200, {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
        )

    async def events(self, values: Iterable[Any]) -> None:
        """Some events, in one piece on the wire; what has a type is an event of that name."""
        await self._write(b"".join(map(_event, values)))

    async def pulse(self) -> None:
        """A sign of life that clients do not show, lest what lies between cuts a quiet connection."""
        await self._write(b": still working\n\n")

    async def close(self, mark: bytes = b"data: [DONE]\n\n") -> None:
        """The end of the events, and what tells it."""
        await self._write(mark)
        await self._write(b"", more=False)

    async def refuse(self, refusal: Refusal) -> None:
        """Say why not: as an answer, or as the last event of one that has begun."""
        if self.streams and not self.whole:
            await self.events([self.broken(refusal)])
            await self._write(b"", more=False)
        elif not self.code:
            await self.reply(refusal.envelope, refusal.status, refusal.headers)

    async def _start(self, code: int, headers: Mapping[str, str]) -> None:
        self.code = code
        told = {"x-request-id": self.id, "x-content-type-options": "nosniff", **headers}
        if self.warnings:
            told["x-warnings"] = "; ".join(map(_plain, self.warnings[:WARNINGS]))
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]
        await self._send({"type": "http.response.start", "status": code, "headers": raw})

    async def _write(self, content: bytes, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": more})
        self.whole = not (more or self.left)  # what is written to nobody is dropped in silence


class Gone(Exception):
    """The client has left before it was answered."""


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, "body_too_large", f"the body is larger than {limits.body:,} bytes")


def _event(value: Any) -> bytes:
    name = f"event: {value['type']}\n".encode() if "type" in value else b""
    return name + b"data: " + dump(value) + b"\n\n"


def _plain(text: str) -> str:
    """Text that can stand in a header."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:200]
