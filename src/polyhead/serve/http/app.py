"""The service as an ASGI application: one response per request, a timeout, cancellation, CORS headers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, get_type_hints

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from polyhead.serve.api_errors import (
    ApiError,
    format_traceback,
    internal_error,
    not_found_error,
    unavailable_error,
)
from polyhead.serve.http.http_exchange import HttpExchange, parse_json
from polyhead.serve.service import Service

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


CLIENT_CLOSED_REQUEST = 499  # status counted for a client that has disconnected
MAX_INLINE_BODY = 2**16  # bytes parsed in the event loop; more in another thread
KNOWN_METHODS = {"GET", "HEAD", "POST"}
POLLED_PATHS = {"/health", "/health/live", "/health/ready", "/metrics"}
log = logging.getLogger("polyhead.serve")


class ApiRoute(NamedTuple):
    """Method, path and handler of one endpoint."""

    method: str
    path: str
    handler: Callable[..., Awaitable[None]]  # (service, exchange), and the body if the route has one
    summary: str
    is_public: bool = False  # no key required

    @property
    def body(self) -> type[Any] | None:
        """Type of the request body: that of the handler's argument; None without one."""
        return get_type_hints(self.handler).get("body")


class App:
    """The routes of a service, and its requests in progress.

    ``validate`` makes the body of a request and the warnings about it: (type, JSON, limits, strict fields).
    """

    def __init__(
        self, service: Service, routes: Sequence[ApiRoute], validate: Callable[..., tuple[Any, list[str]]]
    ) -> None:
        self.service, self.validate = service, validate
        self.active_tasks: set[asyncio.Task[None]] = set()
        endpoints = [
            # the id of a model may contain slashes
            Route(route.path.replace("{id}", "{id:path}"), Endpoint(self, route))
            for route in routes
        ]
        self.router = Router(endpoints, redirect_slashes=False, default=Endpoint(self, None))
        origins = service.allowed_origins
        self.handler: ASGIApp = CorsApp(self.router, origins) if origins else self.router


class Endpoint:
    """ASGI application of one route, for all methods of its path; None: of all other paths."""

    def __init__(self, app: App, route: ApiRoute | None) -> None:
        self._service, self._active_tasks, self._route = app.service, app.active_tasks, route
        self._validate = app.validate
        self._body_type = route.body if route else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange, start_time = HttpExchange(scope, receive, send, self._service.limits), time.monotonic()
        code = 0
        try:
            exchange.check_head()
            await self._handle_request(exchange)
        except ApiError as refusal:
            await exchange.send_error(refusal)
        except ClientDisconnect:
            code = CLIENT_CLOSED_REQUEST
            self._service.metrics.aborted_requests.labels("disconnect").inc()
        except Exception as error:
            log.error("%s failed: %s", exchange.id, format_traceback(error))
            await exchange.send_error(internal_error())
        # no client text is logged, except an id of plain characters
        code, seconds = code or exchange.status, time.monotonic() - start_time
        path = self._route.path if self._route else "other"
        self._service.metrics.requests.labels(path, str(code)).inc()
        if self._body_type is not None:
            self._service.metrics.request_time.observe(seconds)
        method = exchange.request.method if exchange.request.method in KNOWN_METHODS else "OTHER"
        # pages and monitors poll every few seconds
        write_line = log.debug if path in POLLED_PATHS and code == 200 else log.info
        write_line("%s %s %s %d %.0f ms", exchange.id, method, path, code, seconds * 1000)
        if exchange.has_unread_body:
            await exchange.discard_body()

    async def _handle_request(self, exchange: HttpExchange) -> None:
        """Authenticate, read and validate a request, and run its handler while the client is connected."""
        service, route, request = self._service, self._route, exchange.request
        service.api_keys.check_host_header(request.headers)
        if route is None:
            raise not_found_error()
        allowed = route.method
        if request.method != allowed and (request.method, allowed) != ("HEAD", "GET"):
            raise ApiError(405, "method_not_allowed", f"allowed: {allowed}", headers={"allow": allowed})
        if not route.is_public:
            service.api_keys.check(request.headers)
        body_type = self._body_type
        if body_type is None:
            await route.handler(service, exchange)
            return
        if route.path.startswith("/v1/"):  # tokenize and detokenize run at once
            service.check_queue()  # before the body is read
        content = await exchange.read_body()

        def parse_body() -> tuple[Any, list[str]]:
            return self._validate(body_type, parse_json(content), service.limits, service.strict_fields)

        # a body of megabytes takes a tenth of a second
        num_chars = len(content) if len(content) > MAX_INLINE_BODY else 0
        body, exchange.warnings = await service.run_in_executor(parse_body, num_chars)
        if service.is_draining:  # no await between here and active_tasks.add, so drain cannot miss it
            raise unavailable_error("shutting_down", "the service is shutting down")
        service.check_model(body.model)
        await self._run_while_connected(exchange, route.handler(service, exchange, body))

    async def _run_while_connected(self, exchange: HttpExchange, handler: Awaitable[None]) -> None:
        """Run a handler within the time limit; cancel it when the client disconnects."""
        seconds, aborted = self._service.limits.timeout, self._service.metrics.aborted_requests
        work = asyncio.ensure_future(handler)
        disconnect = asyncio.ensure_future(exchange.wait_disconnected())
        self._active_tasks.add(work)
        try:
            await asyncio.wait({work, disconnect}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if exchange.is_complete:  # a client may disconnect as soon as it has its response
                await asyncio.wait({work})
            if not work.done():
                work.cancel("the client has disconnected, or its time is up")
                await asyncio.wait({work})
                if exchange.is_disconnected:
                    raise ClientDisconnect
                aborted.labels("deadline").inc()
                raise ApiError(504, "deadline", f"not answered within {seconds:g} s: request less at once")
            if work.cancelled():
                aborted.labels("shutdown").inc()
                raise unavailable_error("shutting_down", "the service has been shut down")
            work.result()
            if not exchange.is_complete:
                raise ClientDisconnect
        finally:
            work.cancel()
            disconnect.cancel()
            self._active_tasks.discard(work)
            # breaks the cycle task -> error -> frame, which would keep the body until a garbage collection
            del work, disconnect
