"""One model that is being served: who may come in, what waits, and the way from a request to the model's thread and back."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from polyhead.errors import UserError
from polyhead.generate.chat import Chat
from polyhead.generate.service import Asked
from polyhead.models.build import ABLE
from polyhead.registry import Choice
from polyhead.run import Run
from polyhead.serve.bodies import Drawing
from polyhead.serve.card import Card
from polyhead.serve.driver import Driver
from polyhead.serve.keys import Keys
from polyhead.serve.limits import Limits
from polyhead.serve.meters import Meters
from polyhead.serve.refusal import Refusal
from polyhead.serve.talk import Talk, Talks, told
from polyhead.text.sides import undecided

T = TypeVar("T")
READERS = 2  # threads that turn text into tokens
SHORT = 4096  # characters that are tokenized on the spot: handing them to another thread takes longer
TASKS = {
    "encoder-decoder": ["translations", "completions", "score"],
    "decoder": ["completions", "score", "embeddings"],
    "encoder": ["embeddings", "fill-mask"],
    "classifier": ["classify", "embeddings"],
}
log = logging.getLogger("polyhead.serve")


class Service:
    """A run, the thread that its model lives in, and what is bounded about them."""

    def __init__(
        self,
        run: Run,
        name: str,
        limits: Limits,
        keys: Keys,
        *,
        strict: bool = False,
        deterministic: bool = False,
        chat: Choice | None = None,
        **engine: Any,
    ) -> None:
        self.run, self.name, self.limits, self.keys, self.strict = run, name, limits, keys, strict
        self.deterministic, self.created, self.draining = deterministic, int(time.time()), False
        self.kind = run.kind
        talks = self.kind in ("decoder", "encoder-decoder")
        self.engine = run.engine(deterministic=deterministic, **engine) if talks else None
        self.chat = self._chat(chat)
        self.undecided = undecided(run.tokenizer) if self.kind == "encoder-decoder" else ""
        unable = dict.fromkeys(("completions", "score"), bool(self.undecided))
        unable |= {"fill-mask": not run.config.head, "embeddings": len(run.members) > 1}
        self.tasks = [task for task in TASKS[self.kind] if not unable.get(task)]
        self.tasks += ["chat/completions", "responses"] if self.chat else []
        if not self.tasks:
            raise UserError(f"{name} can do nothing here: vectors are of one run, not of {len(run.members)}")
        self.card = Card.of(run, shows_own=not keys)
        self.meters = Meters()
        self.driver: Driver | None = None
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="polyhead-read")
        self._reading = self._gave_way = 0

    def _chat(self, choice: Choice | None) -> Chat | None:
        """How it converses, if it does; a format that was asked for must fit, one that the run says may turn out not to."""
        if choice is None and (self.run.generation.chat is None or self.kind != "decoder"):
            return None
        if self.kind != "decoder" or self.engine is None:
            raise UserError(f"--chat: {self.name} is {ABLE[self.kind][0]}; language models alone converse")
        try:
            return Chat(self.engine, choice or self.run.generation.chat)
        except UserError as error:
            if choice is not None:
                raise
            log.warning("no conversations are held: %s", error)
            return None

    def start(self) -> None:
        """Begin to work, for the event loop that runs."""
        loop = asyncio.get_running_loop()
        # sums in a batch are rounded as the batch is composed
        together = 0 if self.deterministic else self.limits.batch
        self.driver = driver = Driver(self.engine, loop, self.limits.stall, together)
        driver.start()
        self.meters.gauge("requests_running", "texts that the model is at", lambda: driver.running)
        self.meters.gauge("requests_waiting", "texts that wait for their turn", lambda: self.waiting)
        self.meters.gauge("kv_tokens", "tokens whose keys and values are kept", lambda: driver.held)

    def close(self) -> None:
        """Stop working; who still waits is told so."""
        if self.driver is not None:
            self.driver.close()
        self.readers.shutdown(wait=False, cancel_futures=True)

    @property
    def waiting(self) -> int:
        """Texts whose turn has not come."""
        return self._reading + (self.driver.waiting if self.driver else 0)

    @property
    def trouble(self) -> str:
        """Why nobody should send requests now; empty if they may."""
        if self.draining:
            return "the service is shutting down"
        return self.driver.trouble if self.driver else "the service is starting"

    def need(self, task: str) -> None:
        """Refuse what this model cannot do, and say what it can."""
        if task not in self.tasks:
            able = ", ".join(f"/v1/{one}" for one in self.tasks)
            raise Refusal(
                400,
                "wrong_task",
                (task in TASKS[self.kind] and self.undecided)
                or f"{self.name} is {ABLE[self.kind][0]}, which /v1/{task} cannot use: use {able}",
                "model",
            )

    def named(self, model: str) -> None:
        """Refuse a request for another model."""
        if model not in ("", self.name):
            raise Refusal(
                404,
                "model_not_found",
                f"there is no model of that name; this service has {self.name!r}",
                "model",
            )

    def check_room(self, texts: int = 1) -> None:
        """Refuse texts for which there is no place in the queue, or nobody to do them."""
        assert self.driver is not None
        if not self.driver.is_alive():
            raise Refusal(503, "not_ready", self.trouble, headers={"retry-after": "5"})
        if self.waiting and self.waiting + texts > self.limits.waiting:
            raise Refusal(
                429,
                "overloaded",
                f"{self.waiting} texts wait already: try again later",
                headers={"retry-after": "1"},
            )

    @contextmanager
    def _place(self, texts: int) -> Iterator[None]:
        """A place in the queue while texts are read; they stand in the engine's afterwards."""
        self.check_room(texts)
        self._reading += texts
        try:
            yield
        finally:
            self._reading -= texts

    async def aside(self, work: Callable[[], T], chars: float) -> T:
        """What is done with so many characters; where that would hold up the event loop, by a thread that does not touch the model."""
        if chars <= SHORT:
            return _plainly(work)
        return await asyncio.get_running_loop().run_in_executor(self.readers, lambda: _plainly(work))

    async def compute(
        self,
        key: Hashable,
        check: Callable[[], list[Any]],
        work: Callable[[list[Any]], Sequence[Any]],
        texts: Sequence[Any],
    ) -> tuple[list[Any], Sequence[Any]]:
        """What ``check`` gives, and of each item of it a result that the model's thread computes."""
        assert self.driver is not None
        with self._place(len(texts)):
            items = await self.aside(check, size(texts))
            done = self.driver.work(key, work, items)
        return items, await self._done(done)

    async def compute_more(
        self, key: Hashable, work: Callable[[list[Any]], Sequence[Any]], items: list[Any]
    ) -> Sequence[Any]:
        """Results for a request that was let in before: it is not turned away halfway, however many wait."""
        assert self.driver is not None
        return await self._done(self.driver.work(key, work, items))

    async def _done(self, work: Future[Sequence[Any]]) -> Sequence[Any]:
        try:
            return await asyncio.wrap_future(work)
        except UserError as error:
            raise Refusal(400, "invalid_value", str(error)) from None
        finally:
            del work  # it knows its error, which knows this frame

    @asynccontextmanager
    async def talking(
        self, read: Callable[[], list[Asked]], texts: Sequence[Any], body: Drawing
    ) -> AsyncIterator[Talks]:
        """Texts that the engine has taken. Whoever leaves early takes them with him: their room is free a step later."""
        assert self.driver is not None and self.engine is not None
        talks = Talks()
        form = body.response_format or body.structured_outputs or self.engine.config.form
        form = form or getattr(body, "tools", None)  # of which one may have to be called
        try:
            with self._place(len(texts)):
                # a form of few characters may take seconds to be read
                asked = await self.aside(read, math.inf if form else size(texts))
                talks.all = [Talk(number, one, talks.hears, body.stream) for number, one in enumerate(asked)]
                if body.max_tokens:
                    self.driver.begin(talks.all)
                else:
                    talks.rest()
            for taken in [await talks.hears.get() for _ in talks.all]:
                if taken is not None and taken.error is not None:
                    raise told(taken.error)
            yield talks
        finally:
            for talk in talks.all:
                self.driver.drop(talk)
                talk.hears = None  # news that nobody has read know their text, which must not know them

    def measures(self) -> bytes:
        """What Prometheus is told."""
        gave_way = self.engine.engine.preemptions if self.engine else 0
        self.meters.preemptions.inc(gave_way - self._gave_way)
        self._gave_way = gave_way
        return self.meters.text()

    def count(self, talks: Sequence[Talk]) -> dict[str, Any]:
        """The usage that an answer tells, also added to the measures."""
        read = sum(len(talk.asked.source or talk.asked.prompt) for talk in talks)
        said = sum(sum(map(len, talk.stream.tokens)) for talk in talks if talk.stream)
        self.meters.tokens.labels("prompt").inc(read)
        self.meters.tokens.labels("completion").inc(said)
        for talk in talks:
            # beams come all at once: they have no log-probabilities of single tokens, and no time between two
            longest = max(map(len, talk.stream.log_probs)) if talk.stream else 0
            if talk.first:
                self.meters.first_token.observe(talk.first - talk.begun)
            if longest > 1:
                self.meters.per_token.observe((talk.last - talk.first) / (longest - 1))
        counted: dict[str, Any] = {
            "prompt_tokens": read,
            "completion_tokens": said,
            "total_tokens": read + said,
        }
        if self.kind == "decoder":
            known = sum(talk.stream.request.reused or 0 for talk in talks if talk.stream)
            counted["prompt_tokens_details"] = {"cached_tokens": known}
        return counted


def size(texts: Sequence[Any]) -> int:
    """Characters, or tokens, of texts and of pairs of texts."""
    return sum(size(text) if isinstance(text, tuple) else len(text) for text in texts)


def _plainly(work: Callable[[], T]) -> T:
    """The result, or a Refusal; a tokenizer's panic is no Exception and must not end the thread."""
    try:
        return work()
    except (Refusal, MemoryError):
        raise
    except UserError as error:
        raise Refusal(400, "invalid_value", str(error)) from None
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise Refusal(400, "invalid_value", "the text cannot be turned into tokens") from None
