"""The service as an ASGI application: one response per request, a timeout, and cancellation on disconnect."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable

from polyhead.serve.http.auth import is_loopback, parse_host
from polyhead.serve.http.errors import ApiError, format_traceback, internal_error
from polyhead.serve.http.http_exchange import ClientDisconnected, HttpExchange, Receive, Scope, Send
from polyhead.serve.http.routes import Route, find_route
from polyhead.serve.openai.request_validation import validate_body
from polyhead.serve.service import Service

CLIENT_CLOSED_REQUEST = 499  # status counted for a client that has disconnected
KNOWN_METHODS = {"GET", "HEAD", "POST"}
log = logging.getLogger("polyhead.serve")


class App:
    """ASGI application without a framework.

    Its purpose is to handle slow and disconnected clients correctly; the routes are a table.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.active_tasks: set[asyncio.Task[None]] = set()  # requests in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange, start_time, route = HttpExchange(scope, receive, send), time.monotonic(), None
        code = 0
        try:
            exchange.check_head(self.service.limits)
            route = find_route(exchange.method, exchange.path)
            await self._handle_request(exchange, route)
        except ApiError as refusal:
            await exchange.send_error(refusal)
        except ClientDisconnected:
            code = CLIENT_CLOSED_REQUEST
            self.service.metrics.aborted_requests.labels("disconnect").inc()
        except Exception as error:
            log.error("%s failed by %s", exchange.id, format_traceback(error))
            await exchange.send_error(internal_error())
        self._log_request(exchange, route, code or exchange.status, time.monotonic() - start_time)

    async def _handle_request(self, exchange: HttpExchange, route: Route) -> None:
        """Authenticate, read and validate a request, and run its handler while the client is connected."""
        if not route.is_public:
            self._check_host(exchange)
            self.service.api_keys.check(exchange.headers)
        if route.body is None:
            await route.handler(self.service, exchange)
            return
        if route.is_queued:  # reject before the body is read
            self.service.check_queue()
        values = await exchange.read_body(self.service.limits)
        if self.service.is_draining:  # no await between here and active_tasks.add, so drain cannot miss it
            raise ApiError(503, "shutting_down", "the service is shutting down", headers={"retry-after": "5"})
        body, exchange.warnings = validate_body(
            route.body, values, self.service.limits, self.service.strict_fields
        )
        self.service.check_model(body.model)
        work = asyncio.ensure_future(self._run_with_timeout(route.handler(self.service, exchange, body)))
        disconnect = asyncio.ensure_future(exchange.wait_disconnected())
        self.active_tasks.add(work)
        try:
            await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if exchange.is_complete:  # a client may disconnect as soon as it has its response
                await asyncio.wait({work})
            if not work.done():
                work.cancel("the client has left")
                await asyncio.wait({work})
                raise ClientDisconnected
            if work.cancelled():
                self.service.metrics.aborted_requests.labels("shutdown").inc()
                raise ApiError(
                    503, "shutting_down", "the service has been shut down", headers={"retry-after": "5"}
                )
            work.result()
            if not exchange.is_complete:
                raise ClientDisconnected
        finally:
            work.cancel()
            disconnect.cancel()
            self.active_tasks.discard(work)
            # breaks the cycle task -> error -> frame, which would keep the body until a garbage collection
            del work, disconnect

    async def _run_with_timeout(self, work: Awaitable[None]) -> None:
        seconds = self.service.limits.timeout
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            self.service.metrics.aborted_requests.labels("deadline").inc()
            raise ApiError(
                504, "deadline", f"not answered within {seconds:g} s: ask for less at once"
            ) from None

    def _check_host(self, exchange: HttpExchange) -> None:
        """Without keys, admit only loopback Host headers; this prevents DNS rebinding."""
        host = parse_host(exchange.headers.get("host", ""))
        if not self.service.api_keys and host and not is_loopback(host):
            raise ApiError(
                403, "wrong_host", "without a key this service answers to localhost and 127.0.0.1 alone"
            )

    def _log_request(self, exchange: HttpExchange, route: Route | None, status: int, seconds: float) -> None:
        """Count and log a response. No client text is logged, except an id of plain characters."""
        path = route.path if route else "other"
        self.service.metrics.requests.labels(path, str(status)).inc()
        if route is not None and route.body is not None:
            self.service.metrics.request_time.observe(seconds)
        method = exchange.method if exchange.method in KNOWN_METHODS else "OTHER"
        log.info("%s %s %s %d %.0f ms", exchange.id, method, path, status, seconds * 1000)
