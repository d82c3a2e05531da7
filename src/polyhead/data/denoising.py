"""Damaging a text, so that a model must write it whole again. Pure functions of arrays and a generator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyhead.data.arrays import Ints

Bools = NDArray[np.bool_]


class Spans(NamedTuple):
    """Where spans of a text begin, in ascending order, and how long they are; an empty one stands before its place."""

    starts: Ints
    lengths: Ints


def poisson_spans(n: int, share: float, mean: float, bits: np.random.Generator) -> Spans:
    """Spans that cover ceil(share * n) of n tokens, their lengths drawn from Poisson(mean) (Lewis et al., 2020, sec. 2.2).

    The last is cut so that the number is exact, as in the published code; there are never more spans than tokens
    covered, so that no text becomes longer. All arrangements of the spans are equally likely; they may touch.
    """
    covered = min(n, int(np.ceil(share * n)))
    drawn = np.cumsum(bits.poisson(mean, covered))
    count = min(int(np.searchsorted(drawn, covered)) + 1, covered)
    ends = np.append(drawn[: count - 1], covered)[:count]
    lengths = np.diff(ends, prepend=0)
    # stars and bars: which of the places of free tokens and spans are spans
    places = np.sort(bits.permutation(n - covered + count)[:count])
    return Spans(places - np.arange(count) + ends - lengths, lengths)


def infill(ids: Ints, spans: Spans, mask_id: int) -> Ints:
    """The text with every span, empty ones too, as one mask (text infilling; Lewis et al., 2020)."""
    gone = np.zeros(len(ids), dtype=bool)
    gone[_covered(spans)] = True
    before = np.cumsum(~gone) - ~gone  # free tokens before each place
    at = np.append(before, int((~gone).sum()))[spans.starts]
    return np.insert(ids[~gone], at, mask_id)


def permute_sentences(ids: Ints, ends: Bools, bits: np.random.Generator) -> Ints:
    """The sentences of a text in random order; ``ends`` (T,) tells the tokens that end one."""
    sentences = [part for part in np.split(ids, np.flatnonzero(ends) + 1) if len(part)]
    return np.concatenate([sentences[i] for i in bits.permutation(len(sentences))]) if sentences else ids


def span_counts(n: int, share: float, mean: float) -> tuple[int, int]:
    """How many of n tokens T5 covers, and with how many spans (Raffel et al., 2020, sec. 3.3.4): functions of n alone.

    At least one token is covered and, if there are two, one is not; spans do not touch, so they are at most as many
    as there are tokens left over.
    """
    if n < 2:
        return n, n
    covered = min(max(round(share * n), 1), n - 1)
    return covered, min(max(round(covered / mean), 1), n - covered)


def even_spans(n: int, share: float, mean: float, bits: np.random.Generator) -> Spans:
    """T5's spans: covered and free tokens are each cut at random into as many parts, which take turns, a free one first."""
    covered, count = span_counts(n, share, mean)
    lengths, gaps = _parts(covered, count, bits), _parts(n - covered, count, bits)
    return Spans(np.cumsum(gaps) + np.cumsum(lengths) - lengths, lengths)


def span_corrupt(ids: Ints, spans: Spans, sentinels: Ints) -> tuple[Ints, Ints]:
    """(source, target) of T5: the text with sentinel k in place of span k, and each sentinel with what it stands for.

    One more sentinel closes the target (Raffel et al., 2020, figure 2).
    """
    pieces = np.split(ids, np.stack([spans.starts, spans.starts + spans.lengths], 1).flatten())
    count = len(spans.starts)
    source, target = [pieces[0]], []
    for number in range(count):
        source += [sentinels[number : number + 1], pieces[2 * number + 2]]
        target += [sentinels[number : number + 1], pieces[2 * number + 1]]
    return np.concatenate(source), np.concatenate([*target, sentinels[count : count + 1]])


def _covered(spans: Spans) -> Ints:
    """The places of all spans."""
    return np.repeat(spans.starts - np.cumsum(spans.lengths) + spans.lengths, spans.lengths) + np.arange(
        spans.lengths.sum()
    )


def _parts(n: int, count: int, bits: np.random.Generator) -> Ints:
    """The lengths of ``count`` parts of n, each 1 at least, every way of cutting equally likely."""
    if count >= n:
        return np.full(count, 1 if n else 0)
    cuts = np.sort(bits.permutation(n - 1)[: count - 1]) + 1
    return np.diff(cuts, prepend=0, append=n)
