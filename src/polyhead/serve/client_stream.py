"""Streams of generated text from the engine thread to the clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import NamedTuple

from polyhead.core.errors import UserError
from polyhead.generation.text_engine import PreparedRequest
from polyhead.generation.text_generation import TextDelta
from polyhead.generation.text_output import TextOutput, TokenLogprobs
from polyhead.serve.api_errors import ApiError, format_traceback, internal_error, user_error

log = logging.getLogger("polyhead.serve")


class OutputDelta(NamedTuple):
    """New text of one output, with the log-probabilities of its tokens."""

    row: int
    text: str
    finish_reason: str | None  # None: more will follow
    logprobs: TokenLogprobs


class StreamUpdate(NamedTuple):
    """New output of one request since the last update; an error comes after the text before it."""

    stream: ClientStream
    deltas: list[OutputDelta]
    is_finished: bool
    error: BaseException | None = None


class ClientStream:
    """One request between event loop and engine thread.

    The event loop submits it, the engine thread updates it.
    """

    def __init__(
        self,
        index: int,
        request: PreparedRequest,
        queue: asyncio.Queue[StreamUpdate],
        is_streaming: bool,
    ) -> None:
        self.index, self.request, self.is_streaming = index, request, is_streaming
        self.queue: asyncio.Queue[StreamUpdate] | None = queue  # None: the client has disconnected
        self.output: TextOutput | None = None
        self.start_time = time.monotonic()
        self.first_token_time = self.last_token_time = 0.0  # time of the first and of the newest token
        self.num_sent_tokens = [0] * request.n  # per output, tokens already sent

    def make_delta(self, text_delta: TextDelta) -> OutputDelta:
        """Convert a text delta to an output delta, with the tokens since the last one."""
        assert self.output is not None
        since, self.num_sent_tokens[text_delta.row] = (
            self.num_sent_tokens[text_delta.row],
            len(self.output.tokens[text_delta.row]),
        )
        row, text, is_last = text_delta
        reason = self.finish_reason(row) if is_last else None
        return OutputDelta(row, text, reason, self.output.token_logprobs(row, since))

    def results(self) -> list[OutputDelta]:
        """Return the complete text of every output.

        Empty texts if no token was requested. Beam search may return fewer outputs than requested.
        """
        if self.output is None:
            no_tokens = TokenLogprobs([], [], [])
            return [OutputDelta(row, "", "length", no_tokens) for row in range(self.request.n)]
        return [
            OutputDelta(row, text, self.finish_reason(row), self.output.token_logprobs(row))
            for row, text in enumerate(self.output.collect_texts())
            if self.output.finish_reasons[row] is not None
        ]

    def finish_reason(self, row: int) -> str:
        """Return the finish reason of an output."""
        assert self.output is not None
        reason = self.output.finish_reasons[row] or "stop"
        return {"cancelled": "abort"}.get(reason, reason)

    def should_flush(self, interval: float) -> bool:
        """Whether an update is due; the first and the last one are due at once."""
        assert self.output is not None
        return (
            time.monotonic() - self.last_token_time >= interval
            or self.output.request.finish_status is not None
        )


class ClientStreams:
    """The streams of one request, with a common queue of updates."""

    def __init__(self) -> None:
        self.members: list[ClientStream] = []
        self.queue: asyncio.Queue[StreamUpdate] = asyncio.Queue()

    def finish_empty(self) -> None:
        """Finish all streams without output (``max_tokens`` is 0)."""
        for is_finished in (False, True):
            for stream in self.members:
                self.queue.put_nowait(
                    StreamUpdate(stream, stream.results() if is_finished else [], is_finished)
                )

    async def iter_updates(self, keepalive_seconds: float | None = None) -> AsyncIterator[list[StreamUpdate]]:
        """Yield lists of updates until every stream has finished.

        All pending updates come in one list; an empty list comes after ``keepalive_seconds`` without any.
        """
        num_active = len(self.members)
        while num_active:
            updates: list[StreamUpdate] = []
            with suppress(TimeoutError):
                async with asyncio.timeout(keepalive_seconds):
                    updates = [await self.queue.get()]
            while not self.queue.empty():
                updates.append(self.queue.get_nowait())
            yield updates
            if error := next((update.error for update in updates if update.error is not None), None):
                raise to_api_error(error)
            num_active -= sum(update.is_finished for update in updates)

    async def wait_finished(self) -> None:
        """Wait until every stream has finished."""
        async for _ in self.iter_updates():
            pass


def to_api_error(error: BaseException) -> ApiError:
    """Convert an engine error to the error that the client receives."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return user_error(error)
    log.error("a request ended by %s", format_traceback(error))
    return internal_error()
