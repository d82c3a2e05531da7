"""Tokens to text while they come: never half a character, never the beginning of a stop string.

Bytes that are no character are U+FFFD inside a text, as the tokenizer decodes them, and left out at its end: there they are
most often a character that the limit of tokens cut in two.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Self

from polyhead.errors import UserError

if TYPE_CHECKING:
    from polyhead.text.tokenizer import Tokenizer

UNFINISHED = "\ufffd"  # what decoding gives for bytes that are no whole character
TAIL = 12  # tokens that the text of new ones may depend on: spaces about words, the bytes of three characters at least
WIDEST = 4  # bytes of a character, and so tokens of one
BLANKS = "".join(c for c in map(chr, range(0x3001)) if c.isspace())


def decode_whole(tokenizer: Tokenizer, rows: Iterable[Sequence[int]]) -> list[str]:
    """Ids to texts that end with a whole character, as ``TextStream`` ends them."""
    return [text.rstrip(UNFINISHED) for text in tokenizer.decode(rows)]


class TextStream:
    """The text of one growing sequence after ``before``. ``stop`` strings end it and are not part of it.

    Of several stop strings the one that is complete first counts, however the text is cut into tokens. Only the last
    tokens are decoded again with a new one, so that a long text costs what its length costs, not its square, whatever it
    is made of. At its end bytes that are no character are not part of it, with ``trim`` no blanks at either end. ``silent``
    tokens are those that decoding leaves out.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stop: Sequence[str] = (),
        before: Sequence[int] = (),
        trim: bool = False,
        silent: Container[int] = (),
    ) -> None:
        if "" in stop:
            raise UserError("a stop string is empty; it would end every text before it begins")
        self.decode, self.stop, self.silent = decode, list(stop), silent
        spoken = (token for token in reversed(before) if token not in silent)
        last = list(islice(spoken, TAIL + WIDEST - 1))[::-1]
        self.tail = last[-self._needed(last) :]
        self.known = len(decode(self.tail))  # characters of the tail's text that are sure
        self.held = ""  # text that is sure, but may be the beginning of a stop string
        self.stopped = False
        self.trim, self.begun = trim, False
        self.loose = UNFINISHED + BLANKS * trim  # characters that are left out at the end
        self.pending: list[str] = []  # such characters that are sure, and come with what follows them

    @classmethod
    def of(cls, tokenizer: Tokenizer, stop: Sequence[str], before: Sequence[int], trim: bool = False) -> Self:
        """The text of the tokens of a tokenizer."""
        spoken = tokenizer.spoken
        decode = (lambda ids: tokenizer.decode([ids])[0]) if spoken is None else spoken.text
        return cls(decode, stop, before, trim, tokenizer.silent_ids)

    def feed(self, token: int, last: bool = False) -> str:
        """The text that is sure with this token; with ``last`` all that is left. After a stop string there is none."""
        if self.stopped:
            return ""
        if token not in self.silent:
            self.tail.append(token)
        elif not last:
            return ""
        return self._shown(last)

    def end(self) -> str:
        """What was held back."""
        return "" if self.stopped else self._shown(True)

    @property
    def waits(self) -> int:
        """How many marks for a character that is not whole yet stand behind the text that is sure."""
        return len(self.decode(self.tail)) - self.known + sum(map(len, self.pending))

    def _shown(self, last: bool) -> str:
        text = self.decode(self.tail)
        new = text[self.known :].rstrip(UNFINISHED)
        self.known += len(new)
        if len(self.tail) > 2 * TAIL:
            new += self._shorten(text)
        self.held = self.held + new if self.begun or not self.trim else (self.held + new).lstrip()
        self.begun = self.begun or bool(self.held)
        ends = [(at + len(word), at) for word in self.stop if (at := self.held.find(word)) >= 0]
        self.stopped = bool(ends)
        sure = min(ends)[1] if ends else len(self.held) - (0 if last else self._beginning())
        shown, self.held = self.held[:sure], self.held[sure:]
        return self._without_loose_end(shown)

    def _without_loose_end(self, shown: str) -> str:
        """The text up to its last character that is not loose; the loose ones come with what follows them."""
        text = shown.rstrip(self.loose)
        out, self.pending = ("".join([*self.pending, text]), []) if text else ("", self.pending)
        self.pending.append(shown[len(text) :])
        return out

    def _shorten(self, text: str) -> str:
        """Forget tokens whose text no longer matters, where the rest alone reads as it does behind them.

        Bytes that after so many tokens are no character never will be, but for the last three: they are returned as sure.
        """
        if self.known == len(text) and (size := self._needed(self.tail, text)) < len(self.tail):
            self.tail = self.tail[-size:]
            self.known = len(self.decode(self.tail))
        if len(self.tail) <= 4 * TAIL:
            return ""
        self.tail = self.tail[-TAIL:]
        rest = self.decode(self.tail)
        waits = max(0, min(WIDEST - 1, len(rest) - len(rest.rstrip(UNFINISHED)), len(text) - self.known))
        new = text[self.known : len(text) - waits]
        self.known = len(rest) - waits
        return new

    def _needed(self, tokens: list[int], text: str = "") -> int:
        """How many of the last tokens say the end of their text as they do behind the others; all, if it takes more."""
        for size in range(TAIL, min(TAIL + WIDEST, len(tokens))):
            rest = self.decode(tokens[-size:])
            if rest and rest[0] != UNFINISHED and (text or rest).endswith(rest):
                return size
        return len(tokens)

    def _beginning(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        if not self.stop:
            return 0
        held = self.held
        sizes = (
            k
            for word in self.stop
            for k in range(min(len(word) - 1, len(held)), 0, -1)
            if held.endswith(word[:k])
        )
        return max(sizes, default=0)
