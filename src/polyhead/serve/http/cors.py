"""Cross-origin requests: which web pages may use the service from a browser."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from polyhead.core.errors import UserError

ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
EXPOSED_HEADERS = ("x-request-id", "x-warnings", "retry-after")


def check_origins(origins: Sequence[str]) -> list[str]:
    """Return the allowed origins; a UserError for one that no browser sends."""
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise UserError(
                f"--allowed-origins {origin!r} is not an origin: expected a scheme and a host in lower case, "
                "such as http://localhost:3000, without a path; or * for all web pages"
            )
    return list(origins)


class CorsApp:
    """The application with the CORS headers of allowed origins; it answers preflight requests itself."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = CORSMiddleware(
            app, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope["state"]["connection"]  # an endpoint reports to it, and a preflight reaches none
        connection.start_request()
        try:
            await self._app(scope, receive, send)
        finally:
            connection.finish_request()
