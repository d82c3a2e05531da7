"""Cross-origin requests: which web pages may use the service from a browser."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

EXPOSED_HEADERS = ("x-request-id", "x-warnings", "retry-after")


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
