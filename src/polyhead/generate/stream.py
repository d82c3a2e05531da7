"""Tokens to text while they come: never half a character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyhead.errors import UserError

UNFINISHED = "\ufffd"  # what decoding gives for bytes that are no whole character


class TextStream:
    """The text of one growing sequence. ``stop`` strings end it and are not part of it."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise UserError("a stop string is empty; it would end every text before it begins")
        self.decode, self.stop = decode, list(stop)
        self.ids: list[int] = []
        self.shown, self.stopped = "", False

    def feed(self, token: int, last: bool = False) -> str:
        """The text that is sure with this token; with ``last`` all that is left. After a stop string there is none."""
        self.ids.append(token)
        return self._show(last)

    def end(self) -> str:
        """What was held back."""
        return self._show(True)

    def _show(self, last: bool) -> str:
        if self.stopped:
            return ""
        text = self.decode(self.ids)
        found = [at for at in (text.find(word, self._searched()) for word in self.stop) if at >= 0]
        if found:
            text, self.stopped = text[: min(found)], True
        elif not last:
            text = text.rstrip(UNFINISHED)
            text = text[: len(text) - self._held(text)]
        new = text[len(self.shown) :]
        self.shown = max(self.shown, text, key=len)
        return new

    def _searched(self) -> int:
        """Where a stop string could begin at the earliest: all before was shown, because it could not."""
        return max(0, len(self.shown) - max(map(len, self.stop), default=0))

    def _held(self, text: str) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        sizes = (k for word in self.stop for k in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:k]))
        return max(sizes, default=0)
