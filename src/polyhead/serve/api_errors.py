"""Error responses: a status, and the error envelope of OpenAI's API."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from polyhead.core.errors import NotFiniteError, UserError

T = TypeVar("T")
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request cannot be answered; status, code and message are sent to the client."""

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
        """The response body."""
        kind = ERROR_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid_value_error(param: str | None, message: str) -> ApiError:
    """Error for an invalid value of a field."""
    return ApiError(400, "invalid_value", message, param)


def unsupported_parameter_error(param: str, message: str) -> ApiError:
    """Error for a field that this model, or the combination of fields, does not support."""
    return ApiError(400, "unsupported_parameter", message, param)


def overloaded_error(contents: str) -> ApiError:
    """Error for a full queue; ``contents`` is what is in it: "32 texts"."""
    message = f"{contents} are already queued: try again later"
    return ApiError(429, "overloaded", message, headers={"retry-after": "1"})


def unavailable_error(code: str, message: str) -> ApiError:
    """Error of a service that starts, shuts down or has failed."""
    return ApiError(503, code, message, headers={"retry-after": "5"})


def too_many_connections_error() -> ApiError:
    """Error for a connection beyond the limit."""
    return ApiError(503, "too_many_connections", "too many connections are open")


def head_too_large_error(max_bytes: int) -> ApiError:
    """Error for a request whose path and headers have more than ``max_bytes``."""
    return ApiError(431, "head_too_large", f"the headers are larger than {max_bytes:,} bytes")


def not_found_error() -> ApiError:
    """Error for a path that no route has."""
    return ApiError(404, "not_found", "unknown path; GET /openapi.json lists all")


def user_error(error: UserError, param: str | None = None) -> ApiError:
    """Error for a UserError: status 400, or 500 if the output of the model is not finite."""
    if isinstance(error, NotFiniteError):
        return ApiError(500, "not_a_number", str(error))
    return invalid_value_error(param, str(error))


async def wait_for_result(future: Future[T]) -> T:
    """The result of a future of another thread; a UserError becomes an ApiError."""
    try:
        return await asyncio.wrap_future(future)
    except UserError as error:
        raise user_error(error) from None
    finally:
        del future  # breaks the reference cycle future -> error -> frame


def internal_error() -> ApiError:
    """Error for a defect of the service; no internals are sent to the client."""
    return ApiError(500, "internal_error", "internal error while processing this request; see the log")


def format_traceback(error: BaseException) -> str:
    """Format type and traceback of an error for the log.

    Its message is left out because it may contain client text.
    """
    lines = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__module__}.{type(error).__name__}\n{lines}"
