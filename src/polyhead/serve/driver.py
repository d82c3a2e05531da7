"""The one thread that touches the model: it drives the engine, and between two steps does whatever else a model is for."""

from __future__ import annotations

import logging
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from polyhead.errors import UserError
from polyhead.generate.outcome import Stream
from polyhead.generate.service import TextEngine
from polyhead.generate.text import Said
from polyhead.serve.refusal import where
from polyhead.serve.talk import News, Talk

PULSE = 0.25  # seconds between two signs of life of a thread that has nothing to do
# seconds between two pieces of a text, for each that the model is at: of many every one hears seldom, of more at once,
# for telling takes as long as saying where a model is small
PACE = 1e-3
log = logging.getLogger("polyhead.serve")


class Job(NamedTuple):
    """Items for a function of the model, which may be given those of others along with them."""

    key: Hashable
    work: Callable[[list[Any]], Sequence[Any]]
    items: list[Any]
    done: Future[Sequence[Any]]


class Driver(threading.Thread):
    """What others wish of it is a command in its inbox, so that nothing in the service ever waits for a lock of the engine."""

    def __init__(
        self, engine: TextEngine | None, loop: AbstractEventLoop, stall: float, together: int
    ) -> None:
        super().__init__(name="polyhead-model", daemon=True)
        self.engine, self.loop, self.stall, self.together = engine, loop, stall, together
        self.talks: dict[Talk, Stream] = {}
        self.beat, self.slowest = time.monotonic(), 0.0
        self._inbox: deque[Callable[[], None]] = deque()
        self._jobs: deque[Job] = deque()
        self._coming = 0  # texts and items that were asked for and not begun
        self._wake = threading.Condition()
        self._closed = False
        self._over: Exception | None = None  # why nothing is begun any more
        self._heard = threading.Event()  # the event loop is through with the last news
        self._heard.set()

    # ---- what others may call, from any thread

    def begin(self, talks: Sequence[Talk]) -> None:
        """Put texts to the engine; before any other news of them there is one of each: that it was taken, or has an error."""
        self._post(lambda: self._begin(talks), len(talks))

    def drop(self, talk: Talk) -> None:
        """Nobody wants to hear of it any more. What has ended stays ended."""
        self._post(lambda: self._drop(talk))

    def work(
        self, key: Hashable, work: Callable[[list[Any]], Sequence[Any]], items: list[Any]
    ) -> Future[Sequence[Any]]:
        """``work(items)`` with one result an item; jobs of the same key that wait together are done in one call."""
        job = Job(key, work, items, Future())
        self._post(lambda: self._line_up(job), len(items))
        return job.done

    def close(self) -> None:
        """Come to an end after the present step."""
        self._closed = True
        self._post(lambda: None)

    @property
    def waiting(self) -> int:
        """Texts whose turn has not come."""
        return self._coming + (len(self.engine.engine.waiting) if self.engine else 0)

    @property
    def running(self) -> int:
        """Texts that the engine is at."""
        return len(self.engine.engine.live) if self.engine else 0

    @property
    def held(self) -> int:
        """Tokens whose keys and values are kept, each sequence counted."""
        return sum(sum(member.held) for member in self.engine.engine.live) if self.engine else 0

    @property
    def trouble(self) -> str:
        """Why nothing may be expected of it now; empty if all is well.

        A step may take four times as long as the longest before it, for a first long prompt is no failure.
        """
        if not self.is_alive():
            return "the model's thread has ended"
        age = time.monotonic() - self.beat
        if age > max(self.stall, 4 * self.slowest):
            return f"the model's thread has not moved for {age:.1f} s"
        return ""

    # ---- what its own thread does

    def run(self) -> None:
        try:
            while not self._closed:
                self._rest()
                begun = time.monotonic()
                self._turn()
                self.slowest = max(self.slowest, time.monotonic() - begun)
        except BaseException as error:
            log.error("the model's thread ends by a defect: %s", where(error))
        finally:
            self._end(RuntimeError("the service is ending"))

    def _rest(self) -> None:
        """Wait until there is something to do."""
        with self._wake:
            while True:
                self.beat = time.monotonic()
                if self._inbox or self._jobs or self._closed or self.talks:
                    return
                self._wake.wait(PULSE)

    def _turn(self) -> None:
        """The commands that came, some of the jobs, one step, and the news if the event loop is through with the last.

        Both share one Python: a loop that had to fight for it while more and more news come would keep waiting whoever
        wants no text at all, as a refusal or a question for the service's health. What it is not told now it is told
        later, in longer pieces.
        """
        while self._inbox:
            self._inbox.popleft()()
        if self._jobs:
            self._work()
        if self.engine is not None and not self.engine.engine.idle:
            try:
                self.engine.engine.step()
            except Exception as error:
                log.error("a step failed; its requests end, the service goes on: %s", where(error))
                self.engine.engine.fail(error)
        elif self.talks:  # all have ended, and their last news are to be told
            self._heard.wait(PULSE)
        if self._heard.is_set():
            pause = PACE * self.running
            if news := [one for talk in list(self.talks) if talk.due(pause) and (one := self._news(talk))]:
                self._heard.clear()
                self._tell(news, self._heard)

    def _begin(self, talks: Sequence[Talk]) -> None:
        if self._over is not None:
            self._tell([News(talk, [], True, self._over) for talk in talks])
            return
        assert self.engine is not None
        begun = []
        for talk in talks:
            try:
                talk.stream = self.talks[talk] = self.engine.begin(talk.asked)
                begun.append(News(talk, [], False))
            except BaseException as error:
                begun.append(News(talk, [], True, error))
            self._begun(1)
        self._tell(begun)

    def _drop(self, talk: Talk) -> None:
        if self._over is not None:  # the last news are being told, by another thread than the one that drops
            return
        stream = self.talks.pop(talk, None)
        if stream is not None:
            stream.cancel()

    def _news(self, talk: Talk) -> News | None:
        """What there is to say of a text, if it is wanted now."""
        stream, fault = self.talks[talk], None
        new: dict[int, Said] = {}  # of each output, in one piece
        try:
            for said in stream.news():
                talk.last = time.monotonic()
                talk.first = talk.first or talk.last
                before = new.get(said.row)
                new[said.row] = said._replace(text=before.text + said.text) if before else said
        except BaseException as error:  # a panic of the tokenizer too: it is the affair of this text alone
            log.error("a text cannot be told: %s", where(error))
            stream.cancel()
            fault = error
        pieces = [talk.piece(said) for said in new.values() if talk.live and (said.text or said.last)]
        end = stream.request.end
        if end is None:
            return News(talk, pieces, False) if pieces else None
        del self.talks[talk]
        return News(talk, pieces, True, fault or end.error)

    def _line_up(self, job: Job) -> None:
        if self._over is None:
            self._jobs.append(job)
        elif job.done.set_running_or_notify_cancel():
            job.done.set_exception(self._over)

    def _work(self) -> None:
        """The jobs that wait first, and those that can be done along with them."""
        first = self._jobs.popleft()
        group, rest = [first], deque[Job]()
        while self._jobs:
            job = self._jobs.popleft()
            fits = (
                job.key == first.key
                and sum(len(one.items) for one in group) + len(job.items) <= self.together
            )
            (group if fits else rest).append(job)
        self._jobs = rest
        self._begun(sum(len(job.items) for job in group))
        self._do([job for job in group if job.done.set_running_or_notify_cancel()])

    def _do(self, group: list[Job]) -> None:
        if not group:
            return
        try:
            with torch.inference_mode():
                results = group[0].work([item for job in group for item in job.items])
        except BaseException as error:
            if len(group) == 1:
                # a mistake is told by its message alone; the frames it went through know the job, which knows it
                plain = isinstance(error, UserError)
                group[0].done.set_exception(error.with_traceback(None) if plain else error)
                return
            for job in group:  # one of them is at fault, and only that one is to hear of it
                self._do([job])
            return
        first = 0
        for job in group:
            job.done.set_result(results[first : first + len(job.items)])
            first += len(job.items)

    def _end(self, error: Exception) -> None:
        """Everybody who still waits is told, and so is whoever comes yet."""
        with self._wake:
            self._over = error
        last = [self._news(talk) for talk in list(self.talks)]
        self._tell([one for one in last if one] + [News(talk, [], True, error) for talk in self.talks])
        self.talks.clear()
        while self._inbox:
            self._inbox.popleft()()
        for job in self._jobs:
            self._line_up(job)
        self._jobs.clear()
        self._coming = 0

    def _tell(self, news: list[News], heard: threading.Event | None = None) -> None:
        if news and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._hand_out, news, heard)

    def _hand_out(self, news: list[News], heard: threading.Event | None) -> None:
        for one in news:
            one.talk.hear(one)
        # who hears of it acts in the loop's next round, whoever else waits in the one after that
        if heard is not None:
            self.loop.call_soon(self.loop.call_soon, heard.set)

    def _post(self, command: Callable[[], None], texts: int = 0) -> None:
        with self._wake:
            if self._over is None:
                self._inbox.append(command)
                self._coming += texts
                self._wake.notify()
                return
        command()  # nobody looks into the inbox any more

    def _begun(self, texts: int) -> None:
        with self._wake:  # others add to it
            self._coming -= texts
