"""How a request is refused: a status, and one envelope for every mistake, as OpenAI's clients read it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """Why a request is not answered; what is told to the client, word by word."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = dict(headers or {})

    @property
    def envelope(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(param: str | None, why: str) -> Refusal:
    """A field that says what it may not."""
    return Refusal(400, "invalid_value", why, param)


def unsupported(param: str, why: str) -> Refusal:
    """A field that has no meaning for this model, or beside the others."""
    return Refusal(400, "unsupported_parameter", why, param)


def defect() -> Refusal:
    """What a client is told of an error that is ours: nothing of its inside."""
    return Refusal(500, "internal_error", "the service failed at this request; its log says where")


def where(error: BaseException) -> str:
    """What a log may tell of an error: its kind and the lines it went through. Its message may repeat what a client wrote."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__module__}.{type(error).__name__}\n{lines}"
