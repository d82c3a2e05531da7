"""Decoding many requests at once: each joins as soon as there is room and leaves as soon as it has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import RLock
from traceback import clear_frames

import torch

from polyhead.cache.make import make_cache
from polyhead.cache.pages import NoRoom
from polyhead.errors import UserError, check_whole
from polyhead.generate.batch import Batch, Member, Met
from polyhead.generate.decoder import Decoder
from polyhead.generate.request import End, Request, Search, check_texts
from polyhead.generate.shortlist import Shortlist
from polyhead.registry import Choice


class Engine:
    """Continuous batching (Yu et al., 2022, sec. 4.1) over any cache, for language models and encoder-decoders.

    A step reads a chunk of what is new, shared out evenly over all who read, and gives each running sequence its next
    token. Requests join in the order they came, while rows, tokens and the cache's room suffice; one that could
    never be finished is refused at once. Where room runs out, the youngest gives way and is read anew later: it loses
    time, no token. Every request ends exactly once: done, cancelled or by an error, which is its own affair.

    ``rows`` are the sequences at once at most, ``tokens`` the summed cost of requests at once, ``chunk`` the known
    tokens read in a step. Joining costs something, which is worth it for who waits for an answer; where nobody does,
    ``refill`` lets new ones in only when this share of those that came last is gone: with 1 all of a batch are waited
    for. With ``deterministic`` every request is computed by itself: what it says, to the last bit,
    does not depend on what else runs; otherwise by rounding, as sums in a batch are added up in another order. A cache
    that forgets by what was looked at (h2o, subgen) may forget otherwise where a prompt is read in other chunks, and how
    large they are depends, unless deterministic, on who else reads. With a ``shortlist`` an encoder-decoder says what its sources
    suggest and nothing else, by a smaller head.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        max_len: int,
        cache: Choice | None = None,
        rows: int = 2**30,
        tokens: int = 2**62,
        chunk: int = 4096,
        refill: float = 0.0,
        deterministic: bool = False,
        shortlist: Shortlist | None = None,
    ) -> None:
        assert not model.training, "decoding wants model.eval(): dropout would make the outputs random"
        for name, value in (("rows", rows), ("tokens", tokens), ("chunk", chunk), ("max_len", max_len)):
            check_whole(f"engine: {name}", value, 1)
        if not 0 <= refill <= 1:
            raise UserError(f"engine: refill is {refill}, wanted a share from 0 to 1")
        self.model, self.max_len, self.cache, self.rows = model, max_len, cache, rows
        self.tokens, self.chunk, self.refill, self.deterministic = tokens, chunk, refill, deterministic
        self.shortlist = shortlist
        self.half = max(1, max_len // 2)  # what a text that outgrows the model goes on from
        self._most = 0  # requests that ran after the last ones joined
        self.waiting: deque[Request] = deque()
        self.batches: list[Batch] = []
        self.preemptions = 0
        self._empty = self._new()  # says what an engine without requests has room for
        self._lock = RLock()

    @property
    def live(self) -> list[Member]:
        """Requests with rows in a cache."""
        return [member for batch in self.batches for member in batch.members]

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        with self._lock:  # in the middle of a step a request may be in neither place
            return not self.waiting and not self.live

    def submit(
        self, prompt: Sequence[int], search: Search, *, source: Sequence[int] | None = None, cost: int = 0
    ) -> Request:
        """A new request: go on from a prompt, which in an encoder-decoder is the begin of the target, by a search.

        A UserError says why it can never be served.
        """
        check_texts(self.model, self.max_len, prompt, source)
        if search.width > self.rows:
            raise UserError(
                f"{search.width} sequences are wanted of one request; the engine runs {self.rows} at most"
            )
        request = Request(self, prompt, search, source, cost)
        request.room, there = self._worst(request), self._empty.cache.room(search.width)
        if request.room > there:
            raise UserError(
                f"{len(prompt)} tokens and up to {search.most} new ones in {search.width} sequence{'s' * (search.width > 1)} want room for {request.room:,} tokens; "
                f"the cache has {there:,}: give it more room, or ask for less"
            )
        with self._lock:
            self.waiting.append(request)
        return request

    @torch.inference_mode()
    def step(self) -> None:
        """Let in who fits, read a chunk, and give every running sequence its next token."""
        with self._lock:
            self._admit()
            for batch in list(self.batches):
                self._try(batch, partial(self._advance, batch))
            # a cache whose rows were long would stay long; what others may begin with is worth keeping
            self.batches = [batch for batch in self.batches if batch.members or batch.known is not None]

    @torch.inference_mode()
    def cancel(self, request: Request) -> None:
        """Whatever it is doing, it ends; if it has ended, nothing happens."""
        with self._lock:
            if request.end is None:
                self._drop(request)
                self._end(request, End("cancelled"))

    def fail(self, error: Exception) -> None:
        """Every request ends by this error, and the engine is as new; for what can go wrong beside the requests."""
        with self._lock:
            everyone = [*self.waiting, *(member.request for member in self.live)]
            self.waiting.clear()
            for batch in self.batches:
                batch.close(error)
            self.batches.clear()
            self._most = 0
            for request in everyone:
                if request.end is None:
                    self._end(request, End("error", error))

    @torch.inference_mode()
    def stop(self, request: Request, number: int) -> None:
        """One of its sequences ends; with the last one the request is done."""
        with self._lock:
            if request.end is not None:
                return
            request.search.drop(number)
            if not request.search.rows:
                self._drop(request)
                self._end(request, End("done"))
                return
            for batch in self.batches:
                for member in batch.members:
                    if member.request is request:
                        batch.drop(member)

    def _new(self) -> Batch:
        cache = make_cache(self.cache, self.model.cache_shape, 0, self.max_len)
        return Batch(self.model, cache, not self.deterministic, self.shortlist)

    def _try(self, batch: Batch, work: Callable[[], None]) -> None:
        """Do it; if it fails, whoever waits for one of these requests is told, and the engine goes on without the batch."""
        try:
            work()
        except Exception as error:
            self.batches.remove(batch)
            for member in batch.members:
                self._end(member.request, End("error", error))
            batch.close(error)

    def _worst(self, request: Request) -> int:
        """The most tokens for which a new request ever takes room: whole pages of what all rows share, the rest for each."""
        grain, search, begun = self._empty.cache.grain, request.search, len(request.prompt)
        length, most = begun + search.most - 1, 0
        # rows that are there from the beginning write its last token each
        shared = begun - (len(search.rows) > 1)
        while True:
            once, longest = shared // grain * grain, min(length, self.max_len)
            rows = search.width if longest > shared else 1
            most = max(most, once + rows * -(-(longest - once) // grain) * grain)
            if length <= self.max_len or not shared:
                return most
            gone = self.max_len + 1 - self.half
            length, begun = length - gone, begun - gone
            shared = max(0, begun)

    def _admit(self) -> None:
        """Those that wait, in their order, as long as there is room; nobody overtakes, so nobody waits for ever."""
        if not self.waiting:
            return
        coming: list[Request] = []
        live = self.live
        if len(live) > (1 - self.refill) * self._most:
            return
        rows, tokens = (
            sum(member.request.search.width for member in live),
            sum(member.request.cost for member in live),
        )
        if self.deterministic:  # nothing gives way there, so the worst is counted
            cache, new, taken = self._empty.cache, rows, sum(member.request.room for member in live)
        else:
            cache, new = self.batches[0].cache if self.batches else self._empty.cache, 0
            taken = sum(member.unread + cache.grain * len(member.held) for member in live)
        while self.waiting:
            request = self.waiting[0]
            rows, new, tokens = rows + request.search.width, new + request.search.width, tokens + request.cost
            taken += request.room if self.deterministic else self._soon(request)
            fits = rows <= self.rows and tokens <= self.tokens and taken <= cache.room(new)
            if not fits and (live or coming):
                break
            coming.append(self.waiting.popleft())
        if self.deterministic:
            for request in coming:
                self._let_in(self._new(), [request])
        elif coming:
            self._let_in(self.batches[0] if self.batches else self._new(), coming)
        if coming:
            self._most = len(self.live)

    def _let_in(self, batch: Batch, coming: Sequence[Request]) -> None:
        """They join a batch, if their sources can be read."""
        if (met := self._met(batch, coming)) is None:
            return
        if batch not in self.batches:
            self.batches.append(batch)
        self._try(batch, partial(batch.join, coming, met))

    def _met(self, batch: Batch, coming: Sequence[Request]) -> Met | None:
        """What they bring; if their sources cannot be read, it is they alone that end."""
        try:
            return batch.meet(coming)
        except Exception as error:
            for request in coming:
                self._end(request, End("error", error))
            clear_frames(error.__traceback__)
            return None

    def _soon(self, request: Request) -> int:
        """Room that a request takes before it says something new."""
        grain, rows = self._empty.cache.grain, len(request.search.rows)
        rest = max(len(request.text(row)) for row in range(rows)) - request.shared
        return -(-request.shared // grain) * grain + rows * -(-rest // grain) * grain

    def _advance(self, batch: Batch) -> None:
        """One step of the requests that are decoded together."""
        while True:
            try:
                batch.read(self.chunk)
                break
            except NoRoom as full:
                self._preempt(batch, full)
        for group in batch.groups():
            for member in self._go_on(batch, group):
                error = member.request.search.error
                self._end(member.request, End("error", UserError(error)) if error else End("done"))
            for member in group:
                if member.request.end is None:
                    self._tell(member.request)
                # before it may have to give way to another group
                if member.held and member.held[0] >= self.max_len:
                    self._forget_half(batch, member)

    def _go_on(self, batch: Batch, group: list[Member]) -> list[Member]:
        """A token more for those of a group that there is room for; who ended by it comes back."""
        while there := set(batch.members).intersection(group):
            group = [member for member in group if member in there]
            try:
                return batch.step(group)
            except NoRoom as error:
                self._preempt(batch, error)
        return []

    def _preempt(self, batch: Batch, error: NoRoom) -> None:
        """The youngest gives way; it will read its text again (recomputation: Kwon et al., 2023, sec. 4.5).

        What nothing can give way to does not fit at all: the request ends by the error.
        """
        if len(batch.members) == 1:
            raise error
        victim = batch.members[-1]
        batch.leave([victim])
        self.waiting.appendleft(victim.request)
        self.preemptions += 1

    def _forget_half(self, batch: Batch, member: Member) -> None:
        """A text longer than the model goes on from its last half."""
        member.request.since += member.held[0] + 1 - self.half
        batch.leave([member])
        if met := self._met(batch, [member.request]):
            batch.join([member.request], met)

    def _drop(self, request: Request) -> None:
        """Free the place of a request, wherever it is."""
        if request in self.waiting:
            self.waiting.remove(request)
        for batch in self.batches:
            batch.leave([member for member in batch.members if member.request is request])

    def _tell(self, request: Request) -> None:
        request.events.extend(request.search.said)
        request.search.said.clear()

    def _end(self, request: Request, end: End) -> None:
        assert request.end is None, "a request ends once"
        self._tell(request)
        request.end = end
