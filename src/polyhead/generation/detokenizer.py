"""Incremental detokenization: only complete characters are emitted, and no beginning of a stop string.

Invalid bytes are U+FFFD inside a text, as the tokenizer decodes them, and are dropped at its end: there they
are usually a character that the token limit cut in two.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Self

from polyhead.core.errors import UserError
from polyhead.tokenizers.display import REPLACEMENT_CHAR

if TYPE_CHECKING:
    from polyhead.tokenizers.tokenizer import Tokenizer

# Tokens that the text of new ones may depend on: spaces around words, the bytes of at least three characters.
CONTEXT_TOKENS = 12
_MAX_CHAR_BYTES = 4  # bytes of a character, so also the maximum number of its tokens
_WHITESPACE = "".join(c for c in map(chr, range(0x3001)) if c.isspace())


def decode_complete_chars(tokenizer: Tokenizer, rows: Iterable[Sequence[int]]) -> list[str]:
    """Decode rows of ids without an incomplete character at their ends, as ``Detokenizer`` does."""
    return [text.rstrip(REPLACEMENT_CHAR) for text in tokenizer.decode(rows)]


class Detokenizer:
    """The incremental text of one sequence after ``context_ids``, cut before the first of ``stop_strings``.

    Of several stop strings the one that is complete first counts, for any tokenization. Each new token
    decodes only the last tokens again, so the cost is linear in the length of the text, not quadratic, for
    any content. Invalid bytes at the end are dropped, with ``trim`` also whitespace at both ends.
    ``skipped_ids`` are tokens that decoding omits.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stop_strings: Sequence[str] = (),
        context_ids: Sequence[int] = (),
        trim: bool = False,
        skipped_ids: Container[int] = (),
    ) -> None:
        if "" in stop_strings:
            raise UserError("a stop string is empty; it would end every text immediately")
        self.decode, self.stop_strings, self.skipped_ids = decode, list(stop_strings), skipped_ids
        visible_ids = (token for token in reversed(context_ids) if token not in skipped_ids)
        last_ids = list(islice(visible_ids, CONTEXT_TOKENS + _MAX_CHAR_BYTES - 1))[::-1]
        self.tail_ids = last_ids[-self._min_tail_len(last_ids) :]
        self.num_known_chars = len(decode(self.tail_ids))  # final characters of the tail's text
        self.held_text = ""  # final text that may be the beginning of a stop string
        self.is_stopped = False
        self.trim, self.has_text = trim, False
        self.trailing_chars = REPLACEMENT_CHAR + _WHITESPACE * trim  # characters dropped at the end
        self.pending_trailing: list[str] = []  # final characters of these, emitted with the text after them

    @classmethod
    def for_tokenizer(
        cls, tokenizer: Tokenizer, stop_strings: Sequence[str], context_ids: Sequence[int], trim: bool = False
    ) -> Self:
        """A detokenizer for a tokenizer."""
        token_bytes = tokenizer.token_bytes
        decode = (lambda ids: tokenizer.decode([ids])[0]) if token_bytes is None else token_bytes.decode
        return cls(decode, stop_strings, context_ids, trim, tokenizer.skipped_ids)

    def feed(self, token: int, is_last: bool = False) -> str:
        """Add a token; return the text that is final now, with ``is_last`` all. Empty after a stop string."""
        if self.is_stopped:
            return ""
        if token not in self.skipped_ids:
            self.tail_ids.append(token)
        elif not is_last:
            return ""
        return self._emit(is_last)

    def flush(self) -> str:
        """Return the text that was held back."""
        return "" if self.is_stopped else self._emit(True)

    @property
    def num_pending_chars(self) -> int:
        """Number of decoded characters after the emitted text: incomplete or trailing ones."""
        return len(self.decode(self.tail_ids)) - self.num_known_chars + sum(map(len, self.pending_trailing))

    def _emit(self, is_last: bool) -> str:
        text = self.decode(self.tail_ids)
        new_text = text[self.num_known_chars :].rstrip(REPLACEMENT_CHAR)
        self.num_known_chars += len(new_text)
        if len(self.tail_ids) > 2 * CONTEXT_TOKENS:
            new_text += self._shorten_tail(text)
        self.held_text = (
            self.held_text + new_text
            if self.has_text or not self.trim
            else (self.held_text + new_text).lstrip()
        )
        self.has_text = self.has_text or bool(self.held_text)
        stop_spans = [
            (start + len(word), start)
            for word in self.stop_strings
            if (start := self.held_text.find(word)) >= 0
        ]
        self.is_stopped = bool(stop_spans)
        final_len = (
            min(stop_spans)[1]
            if stop_spans
            else len(self.held_text) - (self._stop_prefix_len() if self.stop_strings and not is_last else 0)
        )
        emitted_text, self.held_text = self.held_text[:final_len], self.held_text[final_len:]
        # text up to its last non-trailing character; the rest is emitted with the text after it
        text = emitted_text.rstrip(self.trailing_chars)
        out, self.pending_trailing = (
            ("".join([*self.pending_trailing, text]), []) if text else ("", self.pending_trailing)
        )
        self.pending_trailing.append(emitted_text[len(text) :])
        return out

    def _shorten_tail(self, text: str) -> str:
        """Forget tokens that no longer affect the text, if the others decode to the same text without them.

        Bytes that are still invalid after so many tokens stay invalid, except the last three: they are
        returned as final.
        """
        if self.num_known_chars == len(text) and (size := self._min_tail_len(self.tail_ids, text)) < len(
            self.tail_ids
        ):
            self.tail_ids = self.tail_ids[-size:]
            self.num_known_chars = len(self.decode(self.tail_ids))
        if len(self.tail_ids) <= 4 * CONTEXT_TOKENS:
            return ""
        self.tail_ids = self.tail_ids[-CONTEXT_TOKENS:]
        tail_text = self.decode(self.tail_ids)
        num_pending = max(
            0,
            min(
                _MAX_CHAR_BYTES - 1,
                len(tail_text) - len(tail_text.rstrip(REPLACEMENT_CHAR)),
                len(text) - self.num_known_chars,
            ),
        )
        new_text = text[self.num_known_chars : len(text) - num_pending]
        self.num_known_chars = len(tail_text) - num_pending
        return new_text

    def _min_tail_len(self, tokens: list[int], text: str = "") -> int:
        """How many last tokens decode to the same text without the others; all, if more are needed."""
        for size in range(CONTEXT_TOKENS, min(CONTEXT_TOKENS + _MAX_CHAR_BYTES, len(tokens))):
            rest = self.decode(tokens[-size:])
            if rest and rest[0] != REPLACEMENT_CHAR and (text or rest).endswith(rest):
                return size
        return len(tokens)

    def _stop_prefix_len(self) -> int:
        """Number of characters at the end that may be the beginning of a stop string."""
        text = self.held_text
        sizes = (
            k
            for word in self.stop_strings
            for k in range(min(len(word) - 1, len(text)), 0, -1)
            if text.endswith(word[:k])
        )
        return max(sizes, default=0)
