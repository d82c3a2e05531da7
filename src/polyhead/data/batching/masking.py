"""Corrupt the tokens of a row for masked and denoising objectives: pure functions of a random generator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyhead.core.array_types import Bools
from polyhead.data.stores.build_cache import IdArray
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.tokenizers.word_boundaries import WordBoundaries

MASKED, RANDOM = 0.8, 0.1  # of the chosen tokens; the rest is unchanged (Devlin et al., 2018, sec. 3.1)


def row_rng(key: list[int]) -> np.random.Generator:
    """The random generator of a row: equal keys give equal draws."""
    return np.random.Generator(np.random.PCG64(key))


def choose_tokens(is_maskable: Bools, mask_ratio: float, rng: np.random.Generator) -> IdArray:
    """Choose positions to predict: a fixed fraction of the maskable ones, (T,) -> (n,) in ascending order.

    As in the published code of BERT the number is round(mask_ratio * maskable), at least 1, instead of an
    independent draw per token: every row contributes equally.
    """
    places = np.flatnonzero(is_maskable)
    return np.sort(rng.permutation(places)[: _num_masked(len(places), mask_ratio)])


def choose_words(
    is_maskable: Bools, is_word_start: Bools, mask_ratio: float, rng: np.random.Generator
) -> IdArray:
    """Whole-word version of ``choose_tokens``: all tokens of a word are chosen, or none; (T,), (T,) -> (n,).

    Words are visited in random order, and one that would exceed the number of tokens is skipped, as in the
    code of BERT. A position that is not maskable separates words. If even the shortest word is too long, one
    is chosen anyway.
    """
    places = np.flatnonzero(is_maskable)
    num_masked = _num_masked(len(places), mask_ratio)
    if not num_masked:
        return places
    # a word continues while its positions are adjacent
    heads = is_word_start[places] | (np.diff(places, prepend=-2) > 1)
    words = np.split(places, np.flatnonzero(heads)[1:])
    order = rng.permutation(len(words))
    chosen_words: list[IdArray] = []
    room = num_masked
    for number in order:
        if len(words[number]) <= room:
            chosen_words.append(words[number])
            room -= len(words[number])
    return np.sort(np.concatenate(chosen_words or [words[order[0]]]))


def corrupt_tokens(
    ids: IdArray, positions: IdArray, mask_id: int, replacement_ids: IdArray, rng: np.random.Generator
) -> IdArray:
    """Mask 80 % of the chosen tokens, replace 10 % by random ordinary tokens, keep 10 %; returns a copy."""
    corrupted = ids.copy()
    kind = rng.random(len(positions))
    random_ids = replacement_ids[(rng.random(len(positions)) * len(replacement_ids)).astype(np.int64)]
    corrupted[positions] = np.where(
        kind < MASKED, mask_id, np.where(kind < MASKED + RANDOM, random_ids, ids[positions])
    )
    return corrupted


def mask_row(
    ids: IdArray,
    is_special: Bools,
    mask_id: int,
    mask_ratio: float,
    words: WordBoundaries | None,
    rng: np.random.Generator,
) -> tuple[IdArray, IdArray]:
    """(corrupted tokens (T,), labels (T,)): labels are the chosen tokens, -100 elsewhere.

    ``is_special`` (V,) marks tokens that are never chosen and never used as replacements. With ``words``,
    whole words are masked.
    """
    is_maskable = ~is_special[ids]
    if words is None:
        positions = choose_tokens(is_maskable, mask_ratio, rng)
    else:
        positions = choose_words(is_maskable, words.find_word_starts(ids), mask_ratio, rng)
    labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int64)
    labels[positions] = ids[positions]
    return corrupt_tokens(ids, positions, mask_id, np.flatnonzero(~is_special), rng), labels


def _num_masked(n: int, mask_ratio: float) -> int:
    return min(n, max(1, round(mask_ratio * n)))


class Spans(NamedTuple):
    """Starts of the spans of a text, in ascending order, and their lengths.

    An empty span is before the token at its start.
    """

    starts: IdArray
    lengths: IdArray


def poisson_spans(n: int, mask_ratio: float, mean_span_len: float, rng: np.random.Generator) -> Spans:
    """Draw spans that cover ceil(mask_ratio * n) of n tokens, with lengths from Poisson(mean_span_len).

    Lewis et al., 2020, sec. 2.2. The last span is cut so that the number is exact, as in the published code.
    There are never more spans than covered tokens, so no text becomes longer. All arrangements of the spans
    are equally likely; spans may be adjacent.
    """
    covered = min(n, int(np.ceil(mask_ratio * n)))
    span_ends = np.cumsum(rng.poisson(mean_span_len, covered))
    count = min(int(np.searchsorted(span_ends, covered)) + 1, covered)
    ends = np.append(span_ends[: count - 1], covered)[:count]
    lengths = np.diff(ends, prepend=0)
    # stars and bars: choose which positions in the sequence of free tokens and spans are spans
    places = np.sort(rng.permutation(n - covered + count)[:count])
    return Spans(places - np.arange(count) + ends - lengths, lengths)


def infill_spans(ids: IdArray, spans: Spans, mask_id: int) -> IdArray:
    """Replace every span, including empty ones, by one mask (text infilling; Lewis et al., 2020)."""
    is_covered = np.zeros(len(ids), dtype=bool)
    is_covered[_span_positions(spans)] = True
    before = np.cumsum(~is_covered) - ~is_covered  # free tokens before each position
    insert_at = np.append(before, int((~is_covered).sum()))[spans.starts]
    return np.insert(ids[~is_covered], insert_at, mask_id)


def permute_sentences(ids: IdArray, is_sentence_end: Bools, rng: np.random.Generator) -> IdArray:
    """Shuffle the sentences of a text; ``is_sentence_end`` (T,) is True for the last token of each."""
    sentences = [part for part in np.split(ids, np.flatnonzero(is_sentence_end) + 1) if len(part)]
    return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))]) if sentences else ids


def span_counts(n: int, mask_ratio: float, mean_span_len: float) -> tuple[int, int]:
    """(number of covered tokens, number of spans) of T5 for a text of n tokens.

    Raffel et al., 2020, sec. 3.3.4. Both depend on n alone. At least one token is covered and, if there are
    two, at least one is not. Spans are never adjacent, so there are at most as many as uncovered tokens.
    """
    if n < 2:
        return n, n
    covered = min(max(round(mask_ratio * n), 1), n - 1)
    return covered, min(max(round(covered / mean_span_len), 1), n - covered)


def even_spans(n: int, mask_ratio: float, mean_span_len: float, rng: np.random.Generator) -> Spans:
    """Draw the spans of T5: covered and free tokens are each cut at random into the same number of parts.

    Free and covered parts alternate, a free one first.
    """
    covered, count = span_counts(n, mask_ratio, mean_span_len)
    lengths, gaps = _random_parts(covered, count, rng), _random_parts(n - covered, count, rng)
    return Spans(np.cumsum(gaps) + np.cumsum(lengths) - lengths, lengths)


def corrupt_spans(ids: IdArray, spans: Spans, sentinels: IdArray) -> tuple[IdArray, IdArray]:
    """(source, target) of T5: the text with sentinels as spans, and each sentinel with its span.

    Sentinel k replaces span k. One more sentinel closes the target (Raffel et al., 2020, figure 2).
    """
    pieces = np.split(ids, np.stack([spans.starts, spans.starts + spans.lengths], 1).flatten())
    count = len(spans.starts)
    source, target = [pieces[0]], []
    for number in range(count):
        source += [sentinels[number : number + 1], pieces[2 * number + 2]]
        target += [sentinels[number : number + 1], pieces[2 * number + 1]]
    return np.concatenate(source), np.concatenate([*target, sentinels[count : count + 1]])


def _span_positions(spans: Spans) -> IdArray:
    """The positions of all tokens in spans."""
    return np.repeat(spans.starts - np.cumsum(spans.lengths) + spans.lengths, spans.lengths) + np.arange(
        spans.lengths.sum()
    )


def _random_parts(n: int, count: int, rng: np.random.Generator) -> IdArray:
    """Draw the lengths of ``count`` parts of n, each at least 1, uniformly over all partitions."""
    if count >= n:
        return np.full(count, 1 if n else 0)
    cuts = np.sort(rng.permutation(n - 1)[: count - 1]) + 1
    return np.diff(cuts, prepend=0, append=n)
