"""The one thread that touches the model, and streams of generated text from it to the clients.

It steps the engine, and runs pooling jobs between two steps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch

from polyhead.core.errors import NotFiniteError, UserError
from polyhead.generation.text_engine import PreparedRequest, TextEngine
from polyhead.generation.text_generation import TextDelta
from polyhead.generation.text_output import TextOutput, TokenLogprobs
from polyhead.serve.api_errors import ApiError, format_traceback, internal_error, user_error

IDLE_POLL_SECONDS = 0.25  # seconds between two heartbeats of an idle thread
# seconds between two updates of a stream, times the number of running texts: with many, each stream gets
# fewer and longer updates, because for a small model sending a token takes as long as decoding it
FLUSH_INTERVAL = 1e-3
DELIVERY_SIZE = 16  # updates sent in one iteration of the event loop: between two, others have their turn
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
        self, index: int, request: PreparedRequest, queue: asyncio.Queue[StreamUpdate], is_streaming: bool
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
        since = self.num_sent_tokens[text_delta.row]
        self.num_sent_tokens[text_delta.row] = len(self.output.tokens[text_delta.row])
        row, text, is_last = text_delta
        reason = self.output.finish_reasons[row] if is_last else None
        return OutputDelta(row, text, reason, self.output.token_logprobs(row, since))

    def results(self) -> list[OutputDelta]:
        """Return the complete text of every output.

        Empty texts if no token was requested. Beam search may return fewer outputs than requested.
        """
        if self.output is None:
            no_tokens = TokenLogprobs([], [], [])
            return [OutputDelta(row, "", "length", no_tokens) for row in range(self.request.n)]
        return [
            OutputDelta(row, text, reason, self.output.token_logprobs(row))
            for row, (text, reason) in enumerate(
                zip(self.output.texts, self.output.finish_reasons, strict=True)
            )
            if reason is not None
        ]


class ClientStreams:
    """The streams of one request, with a common queue of updates."""

    def __init__(self) -> None:
        self.members: list[ClientStream] = []
        self.queue: asyncio.Queue[StreamUpdate] = asyncio.Queue()

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
        """Return when every stream has finished."""
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


class PoolingJob(NamedTuple):
    """Items for a batch function of the model; jobs with the same ``key`` may be batched."""

    key: Hashable
    work: Callable[[list[Any]], Sequence[Any]]
    items: list[Any]
    future: Future[Sequence[Any]]


class EngineThread(threading.Thread):
    """Thread that runs the engine loop.

    Other threads post commands to its inbox, so that nothing in the service waits for a lock of the engine.
    """

    def __init__(
        self,
        engine: TextEngine | None,
        loop: asyncio.AbstractEventLoop,
        engine_timeout: float,
        batch_size: int,
    ) -> None:
        super().__init__(name="polyhead-model", daemon=True)
        self.engine = engine
        self.loop = loop
        self.engine_timeout = engine_timeout
        self.batch_size = batch_size
        self.streams: dict[ClientStream, TextOutput] = {}
        self.last_heartbeat, self.slowest_step = time.monotonic(), 0.0
        self.output_error = ""  # of the last result of the model: its output was not finite
        self._inbox: deque[Callable[[], None]] = deque()
        self._jobs: deque[PoolingJob] = deque()
        self._num_pending = 0  # texts and items submitted but not started
        self._wakeup = threading.Condition()
        self._is_closed = False
        self._shutdown_error: Exception | None = None  # set at shutdown: rejects everything submitted later
        self._updates_delivered = threading.Event()  # set when the event loop has delivered the last updates
        self._updates_delivered.set()

    # ---- called from any thread

    def submit(self, streams: Sequence[ClientStream]) -> None:
        """Submit requests to the engine.

        The first update of each reports that it was accepted, or its error.
        """
        self._post_command(partial(self._submit_streams, streams), len(streams))

    def abort(self, stream: ClientStream) -> None:
        """Cancel a request without further updates; no effect if it has finished."""
        self._post_command(partial(self._abort_stream, stream))

    def submit_job(
        self, key: Hashable, work: Callable[[list[Any]], Sequence[Any]], items: list[Any]
    ) -> Future[Sequence[Any]]:
        """Run ``work(items)`` in this thread; the future gets one result per item.

        Waiting jobs of the same key are run in one call.
        """
        job = PoolingJob(key, work, items, Future())
        self._post_command(partial(self._enqueue_job, job), len(items))
        return job.future

    def close(self) -> None:
        """Stop after the current step."""
        self._is_closed = True
        self._post_command(lambda: None)

    @property
    def num_waiting(self) -> int:
        """Number of texts that wait to be started."""
        return self._num_pending + (len(self.engine.engine.waiting_requests) if self.engine else 0)

    @property
    def num_running(self) -> int:
        """Number of texts that the engine is decoding."""
        return len(self.engine.engine.running_members) if self.engine else 0

    @property
    def cached_tokens(self) -> int:
        """Number of tokens in the KV cache, summed over sequences (shared ones are counted for each)."""
        members = self.engine.engine.running_members if self.engine else []
        return sum(sum(member.cached_lens) for member in members)

    @property
    def health_error(self) -> str:
        """Reason why the thread is considered dead or hung, or its model broken; "" if it is healthy.

        A step may take four times as long as the longest before it, for a first long prompt is no failure.
        """
        if not self.is_alive():
            return "the model's thread has stopped"
        age = time.monotonic() - self.last_heartbeat
        if age > max(self.engine_timeout, 4 * self.slowest_step):
            return f"the model's thread has made no progress for {age:.1f} s"
        return self.output_error

    # ---- called from this thread only

    def run(self) -> None:
        try:
            while not self._is_closed:
                with self._wakeup:
                    self.last_heartbeat = time.monotonic()
                    while not (self._inbox or self._jobs or self._is_closed or self.streams):
                        self._wakeup.wait(IDLE_POLL_SECONDS)
                        self.last_heartbeat = time.monotonic()
                start_time = time.monotonic()
                self._run_iteration()
                self.slowest_step = max(self.slowest_step, time.monotonic() - start_time)
        except BaseException as error:
            log.error("the model's thread stopped because of an internal error: %s", format_traceback(error))
        finally:
            self._shut_down(RuntimeError("the service is stopping"))

    def _run_iteration(self) -> None:
        """Run all commands, one group of jobs and one engine step, then send updates.

        Updates are sent only if the event loop has delivered the last ones. Both threads share the GIL: if
        updates piled up, the event loop would delay every other client, for example a rejection or a health
        check. Text that is not sent now is sent later, in longer deltas.
        """
        while self._inbox:
            self._inbox.popleft()()
        if self._jobs:
            self._run_jobs()
        if self.engine is not None and not self.engine.engine.idle:
            try:
                self.engine.engine.step()
            except Exception as error:
                log.error(
                    "a step failed; its requests end, the service continues: %s", format_traceback(error)
                )
                self.engine.engine.fail_all(error)
        elif self.streams:  # all have finished; their last updates are not sent yet
            self._updates_delivered.wait(IDLE_POLL_SECONDS)
        if self._updates_delivered.is_set():
            # the first and the last update of a stream are due at once
            flush_before = time.monotonic() - FLUSH_INTERVAL * self.num_running
            due = [
                stream
                for stream, output in self.streams.items()
                if stream.last_token_time <= flush_before or output.request.finish_status is not None
            ]
            if updates := [update for stream in due if (update := self._collect_update(stream))]:
                self._updates_delivered.clear()
                self._publish_updates(updates, self._updates_delivered)

    def _submit_streams(self, streams: Sequence[ClientStream]) -> None:
        if self._shutdown_error is not None:
            updates = [StreamUpdate(stream, [], True, self._shutdown_error) for stream in streams]
            self._publish_updates(updates)
            return
        assert self.engine is not None
        updates = []
        for stream in streams:
            try:
                stream.output = self.streams[stream] = self.engine.start_request(stream.request)
                updates.append(StreamUpdate(stream, [], False))
            except BaseException as error:
                updates.append(StreamUpdate(stream, [], True, error))
            with self._wakeup:  # other threads add to it
                self._num_pending -= 1
        self._publish_updates(updates)

    def _abort_stream(self, client_stream: ClientStream) -> None:
        if self._shutdown_error is not None:  # another thread than the one that aborts sends the last updates
            return
        stream = self.streams.pop(client_stream, None)
        if stream is not None:
            stream.cancel()

    def _collect_update(self, client_stream: ClientStream) -> StreamUpdate | None:
        """Return the update of a stream that is due now, or None if it has no new text."""
        stream, failure = self.streams[client_stream], None
        merged: dict[int, TextDelta] = {}  # by output, merged
        try:
            for delta in stream.drain_deltas():
                client_stream.last_token_time = now = time.monotonic()
                client_stream.first_token_time = client_stream.first_token_time or now
                previous = merged.get(delta.row)
                merged[delta.row] = delta._replace(text=previous.text + delta.text) if previous else delta
        except BaseException as error:  # also a panic of the tokenizer: it affects this request only
            log.error("a text cannot be sent: %s", format_traceback(error))
            stream.cancel()
            failure = error
        pieces = [
            client_stream.make_delta(delta)
            for delta in merged.values()
            if client_stream.is_streaming and (delta.text or delta.is_last)
        ]
        end = stream.request.finish_status
        if end is None:
            return StreamUpdate(client_stream, pieces, False) if pieces else None
        del self.streams[client_stream]
        self._record_result(end.error)
        return StreamUpdate(client_stream, pieces, True, failure or end.error)

    def _enqueue_job(self, job: PoolingJob) -> None:
        if self._shutdown_error is None:
            self._jobs.append(job)
        elif job.future.set_running_or_notify_cancel():
            job.future.set_exception(self._shutdown_error)

    def _run_jobs(self) -> None:
        """Run the oldest job, batched with the waiting jobs of the same key that fit."""
        first = self._jobs.popleft()
        group, remaining = [first], deque[PoolingJob]()
        while self._jobs:
            job = self._jobs.popleft()
            size = sum(len(member.items) for member in [*group, job])
            is_compatible = job.key == first.key and size <= self.batch_size
            (group if is_compatible else remaining).append(job)
        self._jobs = remaining
        with self._wakeup:
            self._num_pending -= sum(len(job.items) for job in group)
        self._run_group([job for job in group if job.future.set_running_or_notify_cancel()])

    def _run_group(self, group: list[PoolingJob]) -> None:
        if not group:
            return
        try:
            with torch.inference_mode():
                results = group[0].work([item for job in group for item in job.items])
        except BaseException as error:
            self._record_result(error)
            if len(group) == 1:
                # the frames of a traceback refer to the job, and the job to the error: a cycle
                plain = isinstance(error, UserError)
                group[0].future.set_exception(error.with_traceback(None) if plain else error)
                return
            for job in group:  # rerun one by one, so that only the faulty job fails
                self._run_group([job])
            return
        self._record_result(None)
        first = 0
        for job in group:
            job.future.set_result(results[first : first + len(job.items)])
            first += len(job.items)

    def _record_result(self, error: BaseException | None) -> None:
        """Record whether the last output of the model was finite; other errors say nothing about it."""
        if error is None or isinstance(error, NotFiniteError):
            self.output_error = str(error or "")

    def _shut_down(self, error: Exception) -> None:
        """Fail all pending requests and jobs with ``error``, and all that are submitted later."""
        with self._wakeup:
            self._shutdown_error = error
        updates = [update for stream in list(self.streams) if (update := self._collect_update(stream))]
        updates += [StreamUpdate(stream, [], True, error) for stream in self.streams]
        self._publish_updates(updates)
        self.streams.clear()
        while self._inbox:
            self._inbox.popleft()()
        for job in self._jobs:
            self._enqueue_job(job)
        self._jobs.clear()
        self._num_pending = 0

    def _publish_updates(
        self, updates: list[StreamUpdate], delivered_event: threading.Event | None = None
    ) -> None:
        if updates and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._deliver_updates, updates, delivered_event)

    def _deliver_updates(self, updates: list[StreamUpdate], delivered_event: threading.Event | None) -> None:
        for update in updates[:DELIVERY_SIZE]:
            if update.stream.queue is not None:  # the client has not disconnected
                update.stream.queue.put_nowait(update)
        # receivers run in the next iteration of the loop, other waiting tasks in the one after that
        if rest := updates[DELIVERY_SIZE:]:
            self.loop.call_soon(self.loop.call_soon, self._deliver_updates, rest, delivered_event)
        elif delivered_event is not None:
            self.loop.call_soon(self.loop.call_soon, delivered_event.set)

    def _post_command(self, command: Callable[[], None], num_texts: int = 0) -> None:
        with self._wakeup:
            if self._shutdown_error is None:
                self._inbox.append(command)
                self._num_pending += num_texts
                self._wakeup.notify()
                return
        command()  # after shutdown the inbox is not read any more
