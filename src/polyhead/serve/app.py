"""The service as an ASGI application: every request gets one answer, a bound in time, and an end when its client leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable

from polyhead.serve.call import Call, Gone, Receive, Scope, Send
from polyhead.serve.checks import read
from polyhead.serve.keys import host_of, is_loopback
from polyhead.serve.refusal import Refusal, defect, where
from polyhead.serve.routes import Route, find
from polyhead.serve.service import Service

LEFT = 499  # what is counted for a client that did not wait
METHODS = {"GET", "HEAD", "POST"}
log = logging.getLogger("polyhead.serve")


class App:
    """No framework: the routes are a table, and what matters here is what happens when a client leaves or is slow."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.active: set[asyncio.Task[None]] = set()  # requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call, begun, route = Call(scope, receive, send), time.monotonic(), None
        code = 0
        try:
            call.check_head(self.service.limits)
            route = find(call.method, call.path)
            await self._answer(call, route)
        except Refusal as refusal:
            await call.refuse(refusal)
        except Gone:
            code = LEFT
            self.service.meters.aborted.labels("disconnect").inc()
        except Exception as error:
            log.error("%s failed by %s", call.id, where(error))
            await call.refuse(defect())
        self._note(call, route, code or call.code, time.monotonic() - begun)

    async def _answer(self, call: Call, route: Route) -> None:
        """Check who asks, read what is asked, and answer it while the client is there."""
        if not route.open:
            self._check_host(call)
            self.service.keys.check(call.headers)
        if route.body is None:
            await route.does(self.service, call)
            return
        if route.waits:  # who comes in vain is told so before anything is done for him
            self.service.check_room()
        given = await call.body(self.service.limits)
        if self.service.draining:  # from here to where it is among the active ones nothing is waited for
            raise Refusal(503, "shutting_down", "the service is shutting down", headers={"retry-after": "5"})
        body, call.warnings = read(route.body, given, self.service.limits, self.service.strict)
        self.service.named(body.model)
        work = asyncio.ensure_future(self._timely(route.does(self.service, call, body)))
        leaves = asyncio.ensure_future(call.gone())
        self.active.add(work)
        try:
            await asyncio.wait({work, leaves}, return_when=asyncio.FIRST_COMPLETED)
            if call.whole:  # a client may leave as soon as it has its answer
                await asyncio.wait({work})
            if not work.done():
                work.cancel("the client has left")
                await asyncio.wait({work})
                raise Gone
            if work.cancelled():
                self.service.meters.aborted.labels("shutdown").inc()
                raise Refusal(
                    503, "shutting_down", "the service has been shut down", headers={"retry-after": "5"}
                )
            work.result()
            if not call.whole:
                raise Gone
        finally:
            work.cancel()
            leaves.cancel()
            self.active.discard(work)
            # a task knows its error, which knows this frame: they would keep each other, and the body, until they are found
            del work, leaves

    async def _timely(self, work: Awaitable[None]) -> None:
        seconds = self.service.limits.timeout
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            self.service.meters.aborted.labels("deadline").inc()
            raise Refusal(
                504, "deadline", f"not answered within {seconds:g} s: ask for less at once"
            ) from None

    def _check_host(self, call: Call) -> None:
        """Without keys only this machine may ask, and no page of the web under a name that leads here."""
        host = host_of(call.headers.get("host", ""))
        if not self.service.keys and host and not is_loopback(host):
            raise Refusal(
                403, "wrong_host", "without a key this service answers to localhost and 127.0.0.1 alone"
            )

    def _note(self, call: Call, route: Route | None, code: int, seconds: float) -> None:
        """Count and log what was answered; nothing of it is a client's own word but an id of plain letters."""
        path = route.path if route else "other"
        self.service.meters.requests.labels(path, str(code)).inc()
        if route is not None and route.body is not None:
            self.service.meters.request_time.observe(seconds)
        method = call.method if call.method in METHODS else "OTHER"
        log.info("%s %s %s %d %.0f ms", call.id, method, path, code, seconds * 1000)
