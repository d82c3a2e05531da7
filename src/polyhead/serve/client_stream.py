"""Streams of generated text from the engine thread to the clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
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
    is_last: bool
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
        queue: asyncio.Queue[StreamUpdate | None],
        is_streaming: bool,
    ) -> None:
        self.index, self.request, self.is_streaming = index, request, is_streaming
        self.queue: asyncio.Queue[StreamUpdate | None] | None = queue  # None: the client has disconnected
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
        return OutputDelta(*text_delta, self.output.token_logprobs(text_delta.row, since))

    def results(self) -> list[OutputDelta]:
        """Return the complete text of every output.

        Empty texts if no token was requested. Beam search may return fewer outputs than requested.
        """
        if self.output is None:
            return [OutputDelta(row, "", True, TokenLogprobs([], [], [])) for row in range(self.request.n)]
        texts = zip(self.output.collect_texts(), self.output.finish_reasons, strict=True)
        texts_by_row = [(row, text) for row, (text, reason) in enumerate(texts) if reason is not None]
        return [OutputDelta(row, text, True, self.output.token_logprobs(row)) for row, text in texts_by_row]

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
        self.queue: asyncio.Queue[StreamUpdate | None] = asyncio.Queue()

    def finish_empty(self) -> None:
        """Finish all streams without output (``max_tokens`` is 0)."""
        for is_finished in (False, True):
            for stream in self.members:
                self.queue.put_nowait(
                    StreamUpdate(stream, stream.results() if is_finished else [], is_finished)
                )

    async def iter_updates(self, keepalive_seconds: float) -> AsyncIterator[list[StreamUpdate]]:
        """Yield lists of updates until every stream has finished.

        All pending updates come in one list; an empty list is yielded after every ``keepalive_seconds``.
        """
        num_active = len(self.members)
        timer = asyncio.ensure_future(self._tick_keepalive(keepalive_seconds))
        try:
            while num_active:
                items = [await self.queue.get()]
                while not self.queue.empty():
                    items.append(self.queue.get_nowait())
                updates = [item for item in items if item is not None]
                yield updates
                if error := next((item.error for item in updates if item.error is not None), None):
                    raise to_api_error(error)
                num_active -= sum(item.is_finished for item in updates)
        finally:
            timer.cancel()

    async def _tick_keepalive(self, keepalive_seconds: float) -> None:
        while True:
            await asyncio.sleep(keepalive_seconds)
            self.queue.put_nowait(None)

    async def wait_finished(self) -> None:
        """Wait until every stream has finished."""
        async for _ in self.iter_updates(3600):
            pass


def to_api_error(error: BaseException) -> ApiError:
    """Convert an engine error to the error that the client receives."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return user_error(error)
    log.error("a request ended by %s", format_traceback(error))
    return internal_error()
