"""What becomes of one text that an engine was given, piece by piece or whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from polyhead.generate.beam import Beams
from polyhead.generate.decoder import Ranked
from polyhead.generate.request import Request
from polyhead.generate.stream import TextStream
from polyhead.generate.text import Said

Reason = Literal["stop", "length", "cancelled", "error"]


class Likely(NamedTuple):
    """Tokens that were said, how likely each was, and the likeliest in its place where they were asked for."""

    tokens: list[int]
    log_probs: list[float]
    tops: list[Ranked]


class Stream:
    """What becomes of one text: iterate over it for the pieces as they come, or wait for ``texts()``.

    ``reasons`` say for each sequence how it ended: "stop" (by itself or a stop string), "length", "cancelled" or
    "error"; None while it goes on.
    """

    def __init__(
        self, request: Request, voices: list[TextStream], ends: Sequence[int], opening: tuple[int, ...]
    ) -> None:
        self.request, self.voices, self.ends, self.opening = request, voices, ends, opening
        # of each sequence so far, its end included where it said one
        self.tokens: list[list[int]] = [[] for _ in voices]
        # of these tokens; beams have one score for all
        self.log_probs: list[list[float]] = [[] for _ in voices]
        self.tops: list[list[Ranked]] = [[] for _ in voices]  # the likeliest where each of them stands
        self._reasons: list[Reason | None] = [None for _ in voices]
        self._said: list[list[str]] = [[] for _ in voices]

    @property
    def reasons(self) -> list[Reason | None]:
        """How each sequence ended."""
        end = self.request.end
        if end is None or end.reason == "done":
            return list(self._reasons)
        return [reason or end.reason for reason in self._reasons]

    def __iter__(self) -> Iterator[Said]:
        """Piece by piece, never half a character; what beam search finds comes whole, at its end.

        Who stops listening may go on later, here or with ``texts()``.
        """
        while True:
            end = self.request.end  # looked at before the news: what was said before it is among them then
            yield from self.news()
            if end is not None:
                break
            self.request.engine.step()
        if end.error is not None:
            raise end.error

    def news(self) -> Iterator[Said]:
        """The pieces that are there and nobody has fetched yet; the engine is driven by somebody else."""
        while self.request.events:
            token = self.request.events.popleft()
            if self._reasons[token.row] is not None:
                continue  # made while nobody looked, behind a stop string
            voice, ended = self.voices[token.row], token.id in self.ends
            text = voice.end() if ended else voice.feed(token.id, token.last)
            if voice.stopped and not token.last:
                self.request.stop(token.row)
            if token.last or voice.stopped:
                self._reasons[token.row] = "stop" if ended or voice.stopped else "length"
            self.tokens[token.row].append(token.id)
            self.log_probs[token.row].append(token.log_prob)
            self.tops[token.row].append(token.top)
            yield self._note(token.row, text, token.last or voice.stopped)
        if isinstance(self.request.search, Beams):
            yield from self._found(self.request.search)

    def likely(self, row: int, since: int = 0) -> Likely:
        """The tokens of a sequence from one of them on."""
        return Likely(self.tokens[row][since:], self.log_probs[row][since:], self.tops[row][since:])

    def texts(self) -> list[str]:
        """All of it, when it has ended: a text for each sequence."""
        for _ in self:
            pass
        return ["".join(said) for said in self._said]

    def cancel(self) -> None:
        """Wish no more of it; its memory is free at once."""
        self.request.cancel()

    def _found(self, search: Beams) -> Iterator[Said]:
        if self.request.end is None or self.request.end.reason != "done":
            return
        for row, hypothesis in enumerate(search.best()):
            if self._reasons[row] is None:
                tokens, voice = hypothesis.tokens, self.voices[row]
                n = len(self.opening) if tuple(tokens[: len(self.opening)]) == self.opening else 0
                text = "".join(map(voice.feed, tokens[n:])) + voice.end()
                ended = len(tokens) < search.most
                self._reasons[row] = "stop" if ended or voice.stopped else "length"
                self.tokens[row] = [*tokens, self.ends[0]] if ended else tokens
                yield self._note(row, text, True)

    def _note(self, row: int, text: str, last: bool) -> Said:
        self._said[row].append(text)
        return Said(row, text, last)
