"""One wish to an engine: what to go on from, by which rule, and what came of it so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from torch import Tensor

from polyhead.errors import UserError
from polyhead.generate.decoder import Decoder, Hypothesis, Token
from polyhead.generate.shortlist import Narrow

if TYPE_CHECKING:
    from polyhead.generate.engine import Engine


class Search(Protocol):
    """The outputs of one request in the making. Its rows are what the model goes on from, each with all its new tokens."""

    rows: list[list[int]]
    origins: list[int]  # which row of before the last step each row goes on from
    said: list[Token]  # news that nobody has fetched yet
    error: str  # why it cannot go on, if so

    @property
    def rule(self) -> Rule:
        """The rule that all searches follow which can be advanced together."""
        ...

    @property
    def width(self) -> int:
        """The most rows there will be."""
        ...

    @property
    def most(self) -> int:
        """The most new tokens of a row."""
        ...

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that it will say whatever the model thinks."""
        ...

    def best(self) -> list[Hypothesis]:
        """What was found, when it has ended."""
        ...

    def drop(self, number: int) -> None:
        """Go on without one of its sequences."""
        ...


class Rule(Protocol):
    """How the next token is chosen; one for all requests with the same settings, for they are advanced together."""

    def advance(self, searches: Sequence[Search], logits: Tensor, narrow: Narrow | None = None) -> None:
        """The logits (N, V) after each row of each search, in their order; one without rows left has ended.

        ``narrow`` says what the columns are where they are not all tokens.
        """
        ...


class End(NamedTuple):
    """How a request ended; it does so exactly once."""

    reason: Literal["done", "cancelled", "error"]
    error: Exception | None = None


class Request:
    """A handle: iterate over it for its tokens, ask ``result()`` for all of it, ``cancel()`` it at any time.

    Whoever waits for a token drives the engine, so no thread is needed; several threads may wait.
    """

    def __init__(
        self, engine: Engine, prompt: Sequence[int], search: Search, source: Sequence[int] | None, cost: int
    ) -> None:
        self.engine, self.search, self.source, self.cost = engine, search, source, cost
        self.prompt = list(prompt)  # what the model reads before its own words
        self.since = 0  # the first token that it still sees
        self.room = 0  # the most tokens that it ever takes room for
        self.reused: int | None = None  # tokens that had been read for others, once it has begun
        self.events: deque[Token] = deque()
        self.end: End | None = None

    def text(self, row: int) -> list[int]:
        """All tokens that a row has and still sees, the newest last."""
        return [*self.prompt, *self.search.rows[row]][self.since :]

    @property
    def shared(self) -> int:
        """Tokens with which the texts of all rows begin, their newest ones not counted."""
        longest = len(self.text(0)) - 1
        if len(self.search.rows) == 1:
            return longest
        columns = zip(*(self.search.rows), strict=True)
        alike = next((i for i, column in enumerate(columns) if len(set(column)) > 1), longest)
        return min(longest, max(0, len(self.prompt) + alike - self.since))

    def cancel(self) -> None:
        """Wish no more; its memory is free at once. What ended already stays as it is."""
        self.engine.cancel(self)

    def stop(self, number: int) -> None:
        """Enough of one of its sequences; the others go on."""
        self.engine.stop(self, number)

    def result(self) -> list[Hypothesis]:
        """All that was found, when it has ended; an error that ended it is raised."""
        while self.end is None:
            self.engine.step()
        if self.end.error is not None:
            raise self.end.error
        return self.search.best()

    def __iter__(self) -> Iterator[Token]:
        """Every token as soon as it is sure; those of a beam search are sure at its end alone, and none come."""
        while True:
            end = self.end  # looked at before the events: what was said before it is among them then
            while self.events:
                yield self.events.popleft()
            if end is not None:
                break
            self.engine.step()
        if end.error is not None:
            raise end.error


def check_texts(model: Decoder, max_len: int, prompt: Sequence[int], source: Sequence[int] | None) -> None:
    """A UserError says why a model cannot go on from a prompt, or read a source."""
    if not prompt:
        raise UserError("a prompt has no token; a language model goes on from one at least")
    if len(prompt) > max_len:
        raise UserError(
            f"the prompt has {len(prompt)} tokens; this model takes {max_len} at most: give its end"
        )
    if (source is None) == hasattr(model, "encode"):
        why = "none came" if source is None else "this model has no encoder"
        raise UserError(f"an encoder-decoder reads a source, {why}")
    if source is not None and not source:
        raise UserError("a source has no token")
    for token in (*prompt, *(source or ())):
        if not 0 <= token < model.vocab_size:
            raise UserError(f"there is no token {token}; this model knows 0 to {model.vocab_size - 1}")
