"""Limits of the service: sizes and timeouts, with safe defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields

from polyhead.core.errors import UserError


@dataclass(frozen=True)
class Limits:
    """Limits in bytes, counts and seconds. A request that exceeds a size is rejected, never truncated."""

    body: int = 2 * 2**20  # bytes of a request body
    header: int = 16 * 2**10  # bytes of the request line and headers
    chars: int = 32_768  # characters of one text
    batch: int = 32  # texts per request
    n: int = 8  # outputs per text
    beams: int = 16  # beam size
    max_tokens: int = 4096  # new tokens per output
    max_queue: int = 256  # texts in the queue; further requests get status 429
    connections: int = 1024  # open connections
    header_timeout: float = 10.0  # seconds to receive the headers
    body_timeout: float = 30.0  # seconds to receive the body
    timeout: float = 120.0  # seconds to answer a request
    write_timeout: float = 20.0  # seconds without progress while a client reads its response
    engine_timeout: float = 2.0  # seconds without an engine heartbeat; see ``EngineThread.health_error``
    shutdown_timeout: float = 30.0  # seconds for accepted requests to finish at shutdown

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise UserError(f"{field.name} is {value}, wanted more than 0")
