"""Texts of any length as windows of tokens that overlap, with what each window labels."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead.core.errors import UserError
from polyhead.data.batching.encoder_inputs import EncoderInput, fill_template
from polyhead.data.readers.labeled import LabeledExample
from polyhead.data.readers.spans import TextSpan, spans_to_tags
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.scripts import locate_words
from polyhead.tokenizers.tokenizer import Tokenizer

_OVERLAP = 3  # a third of a window is also in the next one


class TextWindow(NamedTuple):
    """Some tokens of a text as encoder input.

    Tokens ``start`` to ``end`` of the text begin at ``offset`` in the row; of those from ``first`` to
    ``last`` this window has the most context of all windows.
    """

    row: EncoderInput
    start: int
    end: int
    first: int
    last: int
    offset: int

    def iter_words(self, units: TextUnits) -> Iterator[tuple[int, int]]:
        """Yield the words whose first token is read here, and its column in the row."""
        for word in range(bisect_left(units.tokens, self.first), bisect_left(units.tokens, self.last)):
            yield word, units.tokens[word] - self.start + self.offset


class TextUnits(NamedTuple):
    """The words of a text, each with the token that has its label; words that share a token are one.

    ``spans`` are their characters, ``tokens`` the indices of the first token of each.
    """

    spans: list[tuple[int, int]]
    tokens: list[int]

    def widen(self, start: int, end: int) -> tuple[int, int]:
        """The words (first, last + 1) that have a character of a span; equal if there are none."""
        touched = [i for i, (a, b) in enumerate(self.spans) if a < end and start < b]
        return (touched[0], touched[-1] + 1) if touched else (0, 0)


def find_units(text: str, starts: Sequence[int]) -> TextUnits:
    """The words of a text whose tokens begin at ``starts``, in characters."""
    units = TextUnits([], [])
    for start, end in locate_words(text):
        token = max(0, bisect_right(starts, start) - 1)
        if units.tokens and token <= units.tokens[-1]:
            units.spans[-1] = units.spans[-1][0], end
        elif starts:
            units.spans.append((start, end))
            units.tokens.append(token)
    return units


def encode_windows(text: str, tokenizer: Tokenizer, max_len: int) -> tuple[TextUnits, list[TextWindow]]:
    """The words of a text and its windows."""
    ids, starts = tokenizer.encode_with_offsets(text)
    return find_units(text, starts), list(split_windows(ids, tokenizer, max_len))


def label_words(
    example: LabeledExample, units: TextUnits, tags: Sequence[str], first: int
) -> NDArray[np.int64]:
    """The tag of each word, by its index in ``tags``, its number, from ``first``, and its hash: (N, 3).

    A span that ends inside a word has the whole word.
    """
    spans = [TextSpan(*units.widen(start, end), label) for start, end, label in example.spans]
    numbers = [tags.index(tag) for tag in spans_to_tags(spans, len(units.spans))]
    hashes = [zlib.crc32(example.texts[0][start:end].encode()) for start, end in units.spans]
    rows = zip(numbers, range(first, first + len(numbers)), hashes, strict=True)
    return np.array([*rows], dtype=np.int64).reshape(-1, 3)


def encode_question(
    texts: Sequence[str], tokenizer: Tokenizer, max_len: int
) -> tuple[list[int], list[TextWindow]]:
    """Where the tokens of a context begin, in characters, and its windows, each after the question.

    A question with more than half of ``max_len`` tokens is cut.
    """
    question, context = texts
    ids, starts = tokenizer.encode_with_offsets(context)
    (question_ids,) = tokenizer.encode([question])
    return starts, list(split_windows(ids, tokenizer, max_len, [question_ids[: max_len // 2]]))


START_LABEL, END_LABEL = 1, 2  # of the first and the last token of an answer; their sum of a single token


def label_answer(spans: Sequence[TextSpan], starts: Sequence[int], window: TextWindow) -> NDArray[np.int64]:
    """A label for each token of a window: 0 for its first and those of the context, IGNORE_INDEX for others.

    The first and last token of the first answer have START_LABEL and END_LABEL; if the window does not have
    all of it, or there is none, these are of the first token (Devlin et al., 2018, sec. 4.3).
    """
    labels = np.full(len(window.row.ids), IGNORE_INDEX, dtype=np.int64)
    labels[0] = labels[window.offset : window.offset + window.end - window.start] = 0
    first = last = 0
    if spans:
        at, end, _ = spans[0]
        token = bisect_left(starts, starts[max(0, bisect_right(starts, at) - 1)])
        end_token = bisect_right(starts, end - 1) - 1
        if window.start <= token <= end_token < window.end:
            first, last = (i - window.start + window.offset for i in (token, end_token))
    labels[first] += START_LABEL
    labels[last] += END_LABEL
    return labels


def split_windows(
    ids: Sequence[int], tokenizer: Tokenizer, max_len: int, first_texts: Sequence[Sequence[int]] = ()
) -> Iterator[TextWindow]:
    """The windows of a text of at most ``max_len`` tokens each, special tokens included, in order.

    The first text of a pair, if there is one, is in each of them.
    """
    template = tokenizer.template(1 + len(first_texts))
    offset = len(template.prefix_ids) + sum(map(len, first_texts)) + len(template.separator_ids)
    room = max_len - offset - len(template.suffix_ids)
    if room < 1:
        raise UserError(f"{max_len} tokens are too few for a text with its special tokens")
    step, last_start = max(1, room - room // _OVERLAP), max(0, len(ids) - room)
    starts = [*range(0, last_start, step), last_start]
    ends = [min(start + room, len(ids)) for start in starts]
    # in the middle of an overlap the context is the same in both windows
    borders = [0, *((start + end) // 2 for start, end in zip(starts[1:], ends, strict=False)), len(ids)]
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        row = fill_template(template, [*first_texts, ids[start:end]], max_len)
        yield TextWindow(row, start, end, borders[i], borders[i + 1], offset)
