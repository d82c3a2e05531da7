"""Lexical constraints: phrases that an output must contain (Hokamp and Liu, 2017; Post and Vilar, 2018)."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.generation.constraints.terminology import Term, TermPhrase, WordEnd
from polyhead.generation.shortlist.shortlist import ShortlistHead

UNMET_TERMS_ERROR = (
    "no output with all of its terms was found: no_repeat_ngram_size, bad_words or the maximum length "
    "prevent it"
)

Extension = tuple[int, int]
"""The row that is extended, and its next token."""


class OpenTerm(NamedTuple):
    """A term that a row ends with, unless the next tokens continue its last word."""

    term: Term
    word_end: WordEnd
    rest: bytes  # the text after it


class ConstraintState(NamedTuple):
    """The progress of a row with its terms."""

    unmet_terms: tuple[Term, ...]
    num_missing: int  # minimum number of tokens that are still missing
    next_tokens: tuple[int, ...]  # tokens that continue a term or begin one
    open_terms: tuple[OpenTerm, ...] = ()


class LexicalConstraints:
    """The terms of one request, and the progress of each of its rows with them.

    The most likely beams alone would never contain an unlikely term. So each row is also extended with the
    next token of every term that it lacks, and only rows with equally many matched term tokens compete with
    each other: dynamic beam allocation (Post and Vilar, 2018, sec. 3). Only a row with all terms may end. A
    token that continues the last word of a phrase makes its term unmet again, so a row that ends with a
    phrase is also extended with its best token that does not continue the word.
    """

    def __init__(self, terms: Sequence[Term], prefix_len: int = 0) -> None:
        """The text begins after ``prefix_len`` tokens."""
        self.prefix_len = prefix_len
        self.num_tokens = sum(map(_min_len, terms))  # tokens of the terms, without overlap
        self.tokens = {token for term in terms for phrase in term for token in phrase.tokens}
        self.states = [_update_state(tuple(terms), (), prefix_len)]
        self._has_matchers = any(phrase.matcher for term in terms for phrase in term)
        # state after a token of no term, by the unmet terms
        self._unrelated_states: dict[tuple[Term, ...], ConstraintState] = {}
        self._next_states: dict[Extension, ConstraintState] = {}  # of the extensions that were tried last

    def propose_extensions(
        self,
        log_probs: Sequence[float],
        logits: Tensor,
        banned_ids: Sequence[Collection[int]],
        shortlist_head: ShortlistHead | None,
    ) -> dict[Extension, float]:
        """Log-probabilities of the extensions that continue, begin or end a term and are not banned.

        ``log_probs`` are those of the rows.
        """
        steps = {
            (row, token)
            for row, progress in enumerate(self.states)
            for token in progress.next_tokens
            if token not in banned_ids[row]
        }
        ends = [row for row, progress in enumerate(self.states) if progress.open_terms]
        if not steps and not ends:
            return {}
        all_log_probs = logits.float().log_softmax(-1)
        for row in ends:
            unsafe = (open_term.word_end.unsafe_tokens for open_term in self.states[row].open_terms)
            excluded = list(frozenset(banned_ids[row]).union(*unsafe))
            columns = excluded if shortlist_head is None else shortlist_head.column_ids(excluded)
            index = torch.tensor(columns, dtype=torch.int64, device=logits.device)
            best = int(all_log_probs[row].index_fill(0, index, -inf).argmax())
            token = best if shortlist_head is None else int(shortlist_head.tokens[best])
            if best not in set(columns):
                steps.add((row, token))
        rows, tokens = map(list, zip(*sorted(steps), strict=True)) if steps else ([], [])
        columns = tokens if shortlist_head is None else shortlist_head.column_ids(tokens)
        values = all_log_probs[rows, columns].tolist()
        return {
            (row, token): log_probs[row] + value
            for row, token, value in zip(rows, tokens, values, strict=True)
        }

    def select_extensions(
        self,
        rows: Sequence[Sequence[int]],
        scores: Mapping[Extension, float],
        width: int,
        eos_ids: Container[int],
        is_last: bool,
    ) -> tuple[list[float], list[int], list[int]]:
        """Select extended rows: the finished ones that have all terms, then ``width`` live ones, best first.

        ``scores`` are the log-probabilities of the extensions. Rows that lack equally many tokens are a bank,
        and all banks have equal shares of the ``width`` live rows. An extension is finished if its token is
        an end token, or if it is the last one (``is_last``).
        """
        self._next_states, banks = {}, dict[int, list[tuple[float, int, int]]]()
        for (origin, token), score in sorted(scores.items(), key=lambda candidate: -candidate[1]):
            if score == -inf:
                break
            next_state = (
                self.states[origin]
                if token in eos_ids
                else self._advance_state(self.states[origin], rows[origin], token)
            )
            if not (next_state.unmet_terms and (is_last or token in eos_ids)):
                self._next_states[origin, token] = next_state
                banks.setdefault(next_state.num_missing, []).append((score, origin, token))
        queues = [iter(banks[missing]) for missing in sorted(banks)]
        finished: list[tuple[float, int, int]] = []
        live_rows: list[tuple[float, int, int]] = []
        while queues and len(live_rows) < width:
            for queue in list(queues):
                for candidate in queue:
                    if not is_last and candidate[2] not in eos_ids:
                        live_rows.append(candidate)
                        break
                    finished.append(candidate)
                else:
                    queues.remove(queue)
        best = finished + sorted(live_rows[:width], key=lambda candidate: -candidate[0])
        return [score for score, _, _ in best], [row for _, row, _ in best], [token for _, _, token in best]

    def _advance_state(self, state: ConstraintState, row: Sequence[int], token: int) -> ConstraintState:
        """The state of a row after one more token."""
        text, unmet_terms, still_open = (*row, token), state.unmet_terms, list[OpenTerm]()
        for term, word_end, rest in state.open_terms:
            rest += word_end.token_bytes[token]
            if is_continued := word_end.is_continued(rest):
                unmet_terms += (term,)
            elif is_continued is None:
                still_open.append(OpenTerm(term, word_end, rest))
        if self._has_matchers or token in self.tokens or len(text) <= self.prefix_len:
            next_state = _update_state(unmet_terms, text, self.prefix_len)
        else:
            if unmet_terms not in self._unrelated_states:
                self._unrelated_states[unmet_terms] = _update_state(unmet_terms, text, self.prefix_len)
            next_state = self._unrelated_states[unmet_terms]
        return next_state._replace(open_terms=(*next_state.open_terms, *still_open))

    def commit(self, extensions: Iterable[Extension]) -> None:
        """Set the rows to the selected extensions: the row that each extends, and its new token."""
        self.states = [self._next_states[extension] for extension in extensions]


def _update_state(unmet_terms: tuple[Term, ...], row: Sequence[int], prefix_len: int) -> ConstraintState:
    """The state of a row that lacked these terms before its last token."""
    partial_matches = [
        (term, [(phrase, _matched_len(phrase, row, prefix_len)) for phrase in term]) for term in unmet_terms
    ]
    endings = [_find_endings(ways, row) for _, ways in partial_matches]
    open_terms = tuple(
        OpenTerm(term, *end)
        for (term, _), ends in zip(partial_matches, endings, strict=True)
        for end in ends[:1]
        if end is not None and None not in ends
    )
    partial_matches = [way for way, ends in zip(partial_matches, endings, strict=True) if not ends]
    reachable = [
        [(phrase, num_matched) for phrase, num_matched in ways if num_matched >= 0]
        for _, ways in partial_matches
    ]
    # one of the partial matches can be continued, the other terms start again
    saved = [
        _min_len(term) - min(len(phrase.tokens) - num_matched for phrase, num_matched in ways)
        for (term, _), ways in zip(partial_matches, reachable, strict=True)
    ]
    missing = sum(_min_len(term) for term, _ in partial_matches) - max([0, *saved])
    follows = dict.fromkeys(phrase.tokens[num_matched] for ways in reachable for phrase, num_matched in ways)
    unmet = tuple(term for term, _ in partial_matches)
    return ConstraintState(unmet, missing, tuple(follows), open_terms)


def _find_endings(
    ways: Sequence[tuple[TermPhrase, int]], row: Sequence[int]
) -> list[tuple[WordEnd, bytes] | None]:
    """The ends of phrases in the last token of a row, each with the text after it; None if its word ended.

    ``ways`` has the number of tokens of each phrase that the row ends with.
    """
    endings: list[tuple[WordEnd, bytes] | None] = []
    for phrase, num_matched in ways:
        for rest in phrase.find_rests(row, num_matched):
            is_continued = phrase.word_end is not None and phrase.word_end.is_continued(rest)
            if phrase.word_end is not None and is_continued is None:
                endings.append((phrase.word_end, rest))
            elif not is_continued:
                endings.append(None)
    return endings


def _matched_len(phrase: TermPhrase, row: Sequence[int], prefix_len: int) -> int:
    """The number of tokens of a phrase that a row ends with; -1 if the phrase can no longer occur."""
    max_size = min(len(phrase.tokens), max(0, len(row) - prefix_len))
    if phrase.is_initial:
        return max_size if tuple(row[prefix_len:]) == phrase.tokens[:max_size] else -1
    return next(
        size for size in range(max_size, -1, -1) if tuple(row[len(row) - size :]) == phrase.tokens[:size]
    )


def _min_len(term: Term) -> int:
    """The minimum number of tokens of a term, at any position."""
    return min(len(phrase.tokens) for phrase in term if not phrase.is_initial)
