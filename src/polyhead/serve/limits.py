"""What a service takes on: every bound in one place, safe as it is."""

from __future__ import annotations

from dataclasses import dataclass, fields

from polyhead.errors import UserError


@dataclass(frozen=True)
class Limits:
    """Bounds of sizes and of seconds. What exceeds a size is refused, never cut."""

    body: int = 2 * 2**20  # bytes of the body of a request
    header: int = 16 * 2**10  # bytes of its head
    chars: int = 32_768  # characters of one text
    batch: int = 32  # texts of one request
    n: int = 8  # outputs of one text
    beams: int = 16  # hypotheses of a beam search
    max_tokens: int = 4096  # new tokens of one output
    waiting: int = 256  # texts that wait for their turn; with more a request gets 429
    connections: int = 1024  # open at once
    header_timeout: float = 10.0  # seconds until the head of a request is there
    body_timeout: float = 30.0  # until its body is there
    timeout: float = 120.0  # until it is answered
    write_timeout: float = 20.0  # for which a client may read nothing of what lies ready for it
    stall: float = 2.0  # without a sign of life of the model's thread, beyond what it has needed before
    grace: float = 30.0  # for accepted requests to end when the service is told to stop

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise UserError(f"{field.name} is {value}, wanted more than 0")
