"""Tokens to text while they come: never half a character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyhead.errors import UserError

UNFINISHED = "\ufffd"  # what decoding gives for bytes that are no whole character
TAIL = 12  # tokens that the text of new ones may depend on: spaces about words, the bytes of three characters at least


class TextStream:
    """The text of one growing sequence after ``before``. ``stop`` strings end it and are not part of it.

    Of several stop strings the one that is complete first counts, however the text is cut into tokens. Only the last
    tokens are decoded again with a new one, so that a long text costs what its length costs, not its square. With ``trim``
    blanks at both ends are not part of it either.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stop: Sequence[str] = (),
        before: Sequence[int] = (),
        trim: bool = False,
    ) -> None:
        if "" in stop:
            raise UserError("a stop string is empty; it would end every text before it begins")
        self.decode, self.stop = decode, list(stop)
        self.tail = self._end_of(list(before))
        self.known = len(decode(self.tail))  # characters of the tail's text that are sure
        self.held = ""  # text that is sure, but may be the beginning of a stop string
        self.stopped = False
        self.trim, self.begun = trim, False

    def feed(self, token: int, last: bool = False) -> str:
        """The text that is sure with this token; with ``last`` all that is left. After a stop string there is none."""
        if self.stopped:
            return ""
        self.tail.append(token)
        return self._shown(last)

    def end(self) -> str:
        """What was held back."""
        return "" if self.stopped else self._shown(True)

    def _shown(self, last: bool) -> str:
        text = self.decode(self.tail)
        new = text[self.known :] if last else text[self.known :].rstrip(UNFINISHED)
        self.known += len(new)
        if len(self.tail) > 2 * TAIL and self.known == len(text):
            self._shorten(text)
        self.held = self.held + new if self.begun or not self.trim else (self.held + new).lstrip()
        self.begun = self.begun or bool(self.held)
        ends = [(at + len(word), at) for word in self.stop if (at := self.held.find(word)) >= 0]
        if ends:
            self.stopped = True
            shown = self.held[: min(ends)[1]]
            return shown.rstrip() if self.trim else shown
        sure = len(self.held) - (0 if last else self._beginning())
        if self.trim:
            sure = len(self.held[:sure].rstrip())
        shown, self.held = self.held[:sure], self.held[sure:]
        return shown

    def _shorten(self, text: str) -> None:
        """Forget tokens whose text no longer matters, where the rest alone reads as it does behind them."""
        tail = self._end_of(self.tail)
        rest = self.decode(tail)
        if text.endswith(rest):
            self.tail, self.known = tail, len(rest)

    def _end_of(self, tokens: list[int]) -> list[int]:
        """The last tokens, and so many that they say something: a word with none before it may be written otherwise."""
        size = TAIL
        while size < len(tokens) and not self.decode(tokens[-size:]):
            size *= 2
        return tokens[-size:]

    def _beginning(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        held = self.held
        sizes = (
            k
            for word in self.stop
            for k in range(min(len(word) - 1, len(held)), 0, -1)
            if held.endswith(word[:k])
        )
        return max(sizes, default=0)
