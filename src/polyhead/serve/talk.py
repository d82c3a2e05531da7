"""Texts between the service and the engine, and what their client is told of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from polyhead.errors import UserError
from polyhead.generate.outcome import Likely, Stream
from polyhead.generate.service import Asked
from polyhead.generate.text import Said
from polyhead.serve.refusal import Refusal, defect, where

log = logging.getLogger("polyhead.serve")


class Piece(NamedTuple):
    """New text of one output, and the tokens it came with."""

    row: int
    text: str
    last: bool
    likely: Likely


class News(NamedTuple):
    """What became of one text since it was heard of last; an error comes in its turn, after the pieces before it."""

    talk: Talk
    pieces: list[Piece]
    ended: bool
    error: BaseException | None = None


class Talk:
    """One text between the service and the engine: asked by the event loop, answered by the model's thread."""

    def __init__(self, number: int, asked: Asked, hears: asyncio.Queue[News | None], live: bool) -> None:
        self.number, self.asked, self.live = number, asked, live  # live: wants every piece
        self.hears: asyncio.Queue[News | None] | None = hears  # None: its client has left
        self.stream: Stream | None = None
        self.begun = time.monotonic()
        self.first = self.last = 0.0  # when its first token came, and its newest
        self.told = [0] * asked.n  # tokens of each output that its pieces came with

    def piece(self, said: Said) -> Piece:
        """What is said of an output, with the tokens that came since its last piece."""
        assert self.stream is not None
        since, self.told[said.row] = self.told[said.row], len(self.stream.tokens[said.row])
        return Piece(*said, self.stream.likely(said.row, since))

    def whole(self) -> list[Piece]:
        """Every output from its beginning to its end; where nothing is to be said, nothing. Beams may find fewer than are wished for."""
        if self.stream is None:
            return [Piece(row, "", True, Likely([], [], [])) for row in range(self.asked.n)]
        texts = zip(self.stream.texts(), self.stream.reasons, strict=True)
        found = [(row, text) for row, (text, reason) in enumerate(texts) if reason is not None]
        return [Piece(row, text, True, self.stream.likely(row)) for row, text in found]

    def hear(self, news: News) -> None:
        """Tell its client, if he is there."""
        if self.hears is not None:
            self.hears.put_nowait(news)

    def due(self, pause: float) -> bool:
        """Whether it is time for news; the first and the last are told at once."""
        assert self.stream is not None
        return time.monotonic() - self.last >= pause or self.stream.request.end is not None


class Talks:
    """The texts of one request, and the news of them all."""

    def __init__(self) -> None:
        self.all: list[Talk] = []
        self.hears: asyncio.Queue[News | None] = asyncio.Queue()

    def rest(self) -> None:
        """Nothing is to be said after these texts: they are taken, and end."""
        for ended in (False, True):
            for talk in self.all:
                self.hears.put_nowait(News(talk, talk.whole() if ended else [], ended))

    async def news(self, pulse: float) -> AsyncIterator[list[News]]:
        """All news until every text has ended, those at once that are there, and none every so many seconds."""
        going = len(self.all)
        timer = asyncio.ensure_future(self._beat(pulse))
        try:
            while going:
                found = [await self.hears.get()]
                while not self.hears.empty():
                    found.append(self.hears.get_nowait())
                news = [one for one in found if one is not None]
                yield news
                if error := next((one.error for one in news if one.error is not None), None):
                    raise told(error)
                going -= sum(one.ended for one in news)
        finally:
            timer.cancel()

    async def _beat(self, pulse: float) -> None:
        while True:
            await asyncio.sleep(pulse)
            self.hears.put_nowait(None)

    async def whole(self) -> None:
        """Wait until every text has ended."""
        async for _ in self.news(3600):
            pass


def told(error: BaseException) -> Refusal:
    """What a client hears of an error of the engine."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, UserError):
        return Refusal(400, "invalid_value", str(error))
    log.error("a request ended by %s", where(error))
    return defect()
