"""Phrases that must stand in an output, wherever it suits (Hokamp and Liu, 2017; Post and Vilar, 2018)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from torch import Tensor

from polyhead.generate.shortlist import Narrow
from polyhead.text.glossary import Phrase, Term

UNMET = "no output with all of its terms was found: no_repeat_ngram_size, forbidden tokens or its greatest length are in their way"

Step = tuple[int, int]
"""The row that is gone on from, and its next token."""


class Progress(NamedTuple):
    """How far an output has come with its terms."""

    unmet: tuple[Term, ...]
    missing: int  # tokens that must still come, at least
    next: tuple[int, ...]  # each of them goes on with a term, or begins one


class Terms:
    """The terms of one request, and how far each of its rows has come with them.

    Of the likeliest beams alone none would ever say an unlikely term. So each is also tried with the next token of every
    term that it lacks, and those that have said equally many tokens of their terms compete with one another alone: the
    dynamic beam allocation of Post and Vilar (2018, sec. 3). Only what has all terms may end.
    """

    def __init__(self, terms: Sequence[Term], told: int = 0) -> None:
        """``told`` tokens come before the text begins."""
        self.told = told
        self.size = sum(map(_shortest, terms))  # tokens that they take, where no two overlap
        self.tokens = {token for term in terms for phrase in term for token in phrase.tokens}
        self.rows = [_progress(tuple(terms), (), told)]
        self._inside = any(phrase.inside for term in terms for phrase in term)
        self._apart: dict[
            tuple[Term, ...], Progress
        ] = {}  # behind a token that is of no term, by what is unmet
        self._after: dict[Step, Progress] = {}  # of those that were last tried

    def offered(
        self, live: Sequence[float], logits: Tensor, barred: Sequence[Container[int]], narrow: Narrow | None
    ) -> dict[Step, float]:
        """The log-probabilities of rows that go on with a term or begin one, where it may come; ``live`` are those of the rows."""
        steps = [
            (row, token)
            for row, progress in enumerate(self.rows)
            for token in progress.next
            if token not in barred[row]
        ]
        if not steps:
            return {}
        rows, tokens = map(list, zip(*steps, strict=True))
        columns = tokens if narrow is None else narrow.places(tokens)
        found = logits.float().log_softmax(-1)[rows, columns].tolist()
        return {step: live[step[0]] + value for step, value in zip(steps, found, strict=True)}

    def chosen(
        self,
        rows: Sequence[Sequence[int]],
        found: Mapping[Step, float],
        width: int,
        ends: Container[int],
        last: bool,
    ) -> tuple[list[float], list[int], list[int]]:
        """Of the log-probabilities of extended rows those that are finished with all terms, then ``width`` others, best first.

        Those that lack equally many tokens are a bank, and all banks have the same share of the others. What is
        extended by its ``last`` token is finished, as is what ends.
        """
        self._after, banks = {}, dict[int, list[tuple[float, int, int]]]()
        for (origin, token), score in sorted(found.items(), key=lambda one: -one[1]):
            if score == -inf:
                break
            after = self.rows[origin] if token in ends else self._with(self.rows[origin], rows[origin], token)
            if not (after.unmet and (last or token in ends)):
                self._after[origin, token] = after
                banks.setdefault(after.missing, []).append((score, origin, token))
        queues = [iter(banks[missing]) for missing in sorted(banks)]
        finished: list[tuple[float, int, int]] = []
        going: list[tuple[float, int, int]] = []
        while queues and len(going) < width:
            for queue in list(queues):
                for one in queue:
                    if not last and one[2] not in ends:
                        going.append(one)
                        break
                    finished.append(one)
                else:
                    queues.remove(queue)
        best = finished + sorted(going[:width], key=lambda one: -one[0])
        return [score for score, _, _ in best], [row for _, row, _ in best], [token for _, _, token in best]

    def _with(self, progress: Progress, row: Sequence[int], token: int) -> Progress:
        """How far a row has come with one token more."""
        text = (*row, token)
        if self._inside or token in self.tokens or len(text) <= self.told:
            return _progress(progress.unmet, text, self.told)
        if progress.unmet not in self._apart:
            self._apart[progress.unmet] = _progress(progress.unmet, text, self.told)
        return self._apart[progress.unmet]

    def follow(self, kept: Iterable[Step]) -> None:
        """The rows after a step: which of those before each goes on from, and its new token."""
        self.rows = [self._after[one] for one in kept]


def _progress(unmet: tuple[Term, ...], row: Sequence[int], told: int) -> Progress:
    """How far a row has come, which lacked these terms before its last token."""
    begun = [(term, [(phrase, _begun(phrase, row, told)) for phrase in term]) for term in unmet]
    begun = [(term, ways) for term, ways in begun if not any(_ends(*way, row) for way in ways)]
    reachable = [[(phrase, said) for phrase, said in ways if said >= 0] for _, ways in begun]
    # of terms that are begun one goes on, and the others begin anew
    saved = [
        _shortest(term) - min(len(phrase.tokens) - said for phrase, said in ways)
        for (term, _), ways in zip(begun, reachable, strict=True)
    ]
    missing = sum(_shortest(term) for term, _ in begun) - max([0, *saved])
    follows = dict.fromkeys(phrase.tokens[said] for ways in reachable for phrase, said in ways)
    return Progress(tuple(term for term, _ in begun), missing, tuple(follows))


def _ends(phrase: Phrase, said: int, row: Sequence[int]) -> bool:
    """Whether a row ends with a phrase, of which it has so many tokens."""
    return said == len(phrase.tokens) or (phrase.inside is not None and phrase.inside.ends(row))


def _begun(phrase: Phrase, row: Sequence[int], told: int) -> int:
    """How many tokens of a phrase a row ends with, -1 where it is too late for it."""
    room = min(len(phrase.tokens), max(0, len(row) - told))
    if phrase.first:
        return room if tuple(row[told:]) == phrase.tokens[:room] else -1
    return next(said for said in range(room, -1, -1) if tuple(row[len(row) - said :]) == phrase.tokens[:said])


def _shortest(term: Term) -> int:
    """Tokens that it takes at least, wherever it stands."""
    return min(len(phrase.tokens) for phrase in term if not phrase.first)
