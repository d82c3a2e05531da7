"""Beam search, of which greedy search is the narrowest: the likeliest outputs of each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import isnan
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from polyhead.errors import UserError
from polyhead.generate.decoder import NOT_A_NUMBER, Decoder, Floats, Hypothesis, Ints, Token, normalised
from polyhead.generate.engine import Engine
from polyhead.generate.repeats import repeats
from polyhead.generate.request import Search
from polyhead.generate.shortlist import Narrow
from polyhead.generate.terms import UNMET, Step, Terms
from polyhead.generate.top import likeliest
from polyhead.registry import Choice
from polyhead.text.form.form import STUCK, Form

EarlyStopping = bool | Literal["never"]


class Wish(NamedTuple):
    """What the output of one request must look like."""

    limit: int  # most new tokens, the end of the sentence included
    prefix: Sequence[int] = ()  # how the output must begin
    certain: int = 0  # so many tokens of the prefix cost nothing: the model was told them
    before: Sequence[int] = ()  # what stands before the output and counts as said

    def check(self, i: int, eos_id: int) -> None:
        """A UserError names sentence i where the wish makes no sense."""
        if self.limit < 1:
            raise UserError(f"max_new_tokens of sentence {i} is {self.limit}, wanted at least 1")
        if len(self.prefix) > self.limit:
            raise UserError(
                f"the prefix of sentence {i} has {len(self.prefix)} tokens, more than max_new_tokens ({self.limit})"
            )
        if eos_id in self.prefix:
            raise UserError(f"the prefix of sentence {i} contains the end-of-sentence token {eos_id}")


class Beaming:
    """The rule: the ``n_best`` outputs y by log P(y | x) / |y| ** length_penalty, best first.

    |y| counts the end of the sentence. Each step extends the live hypotheses by one token and looks at the
    2 x beam_size best extensions, of several ends at beam_size more for each: those among the first beam_size that end
    are finished, the best beam_size of the rest live on. At its limit a hypothesis is finished as it is; where nothing
    may follow any and none is finished, all of them are. A request is done when nothing lives, or when beam_size
    hypotheses are finished and ``early_stopping`` is

    - ``True``: at once;
    - ``False``: and the best live one, scored at its present length, is no better than the worst finished one;
    - ``"never"``: and the best live one cannot become better than the worst finished one, whatever its length:
      log-probabilities only fall, so that its bound is its present log-probability at the greatest length
      (the present one if length_penalty is negative).

    These are the rules of Hugging Face ``generate``. One beam that stops early is greedy search, and costs no more.
    An output may end with ``also`` as well as with the end of the sentence: many models know several ends.
    ``min_new_tokens`` are wanted before any of them, ``forbidden`` tokens never come, and no
    ``no_repeat_ngram_size`` tokens in a row come twice. All that is said has the ``form``, if there is one. A request may have
    ``Terms``, phrases that its output must say: it keeps a hypothesis more for each of their tokens, and which live on is as they choose.
    """

    def __init__(
        self,
        beam_size: int,
        eos_id: int,
        *,
        also: Sequence[int] = (),
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        min_new_tokens: int = 0,
        forbidden: Sequence[int] = (),
        no_repeat_ngram_size: int = 0,
        form: Form | None = None,
    ) -> None:
        if not 1 <= n_best <= beam_size:
            raise UserError(f"n_best is {n_best}, wanted 1 to beam_size ({beam_size})")
        if min_new_tokens < 0:
            raise UserError(f"min_new_tokens is {min_new_tokens}, wanted 0 or more")
        self.size, self.n_best, self.alpha = beam_size, n_best, length_penalty
        self.early_stopping, self.least, self.forbidden = early_stopping, min_new_tokens, list(forbidden)
        self.ngram, self.form, self.ends = no_repeat_ngram_size, form, {eos_id, *also}
        # of which beam_size go on, whatever ends
        self.looked_at = 1 if beam_size == 1 and early_stopping is True else (1 + len(self.ends)) * beam_size

    def advance(self, searches: Sequence[Search], logits: Tensor, narrow: Narrow | None = None) -> None:
        """One token more for each; those of equal width, and of which all or none may end, together."""
        beams = cast("Sequence[Beams]", searches)
        kinds = [(len(beam.rows), len(beam.rows[0]) < self.least) for beam in beams]
        ends = list(accumulate(width for width, _ in kinds))
        for width, unripe in dict.fromkeys(kinds):
            members = [i for i, kind in enumerate(kinds) if kind == (width, unripe)]
            own = logits
            if len(members) < len(beams):
                rows = [row for i in members for row in range(ends[i] - width, ends[i])]
                own = logits[torch.tensor(rows, device=logits.device)]
            banned = [*self.forbidden, *(self.ends if unripe else ())]
            self._advance([beams[i] for i in members], own, width, banned, narrow)

    def _advance(
        self, beams: Sequence[Beams], logits: Tensor, width: int, banned: list[int], narrow: Narrow | None
    ) -> None:
        again = [repeats([*b.wish.before, *row], self.ngram) for b in beams for row in b.rows if self.ngram]
        forced = _forced(beams)
        insisting = any(beam.terms is not None for beam in beams)
        barred = [{*banned, *tokens} for tokens in again or [[]] * len(logits)] if insisting else []
        if narrow is not None:
            banned, again = narrow.places(banned), [narrow.places(tokens) for tokens in again]
            forced = [narrow.places([token])[0] if token >= 0 else token for token in forced]
        said = [row for beam in beams for row in beam.rows]
        shaped = None if self.form is None else self.form.shaped(logits, said)
        must = (
            None if max(forced) < 0 else torch.tensor(forced, device=logits.device).repeat_interleave(width)
        )
        found = likeliest(logits, self.looked_at, banned, must, again, shaped)
        values, ids = (x.cpu().numpy().reshape(len(beams), width, -1) for x in found)
        ids = ids if narrow is None else narrow.tokens[ids]
        values = _free(values, beams)
        best = _best_extensions(beams, values, ids, self.looked_at)
        for i, (beam, (scores, origins, tokens)) in enumerate(zip(beams, best, strict=True)):
            if isnan(scores[0]):
                beam.error = NOT_A_NUMBER
            elif self.form is not None and scores[0] == -np.inf and not beam.finished:
                beam.error = STUCK
            elif beam.terms is None:
                beam.take(scores, origins, tokens)
            else:
                own = slice(width * i, width * (i + 1))
                tried: dict[Step, float] = dict(zip(zip(origins, tokens, strict=True), scores, strict=True))
                firsts = zip(beam.live, values[i, :, 0].tolist(), ids[i, :, 0].tolist(), strict=True)
                tried |= {(row, token): live + value for row, (live, value, token) in enumerate(firsts)}
                if len(beam.rows[0]) >= len(beam.wish.prefix):
                    tried |= beam.terms.offered(beam.live, logits[own], barred[own], narrow)
                beam.take(*beam.terms.chosen(beam.rows, tried, beam.width, self.ends, beam.last))


class Beams:
    """One request: its live hypotheses, those that are finished, and the rule that says when they suffice."""

    def __init__(self, rule: Beaming, wish: Wish, terms: Terms | None = None) -> None:
        self.rule, self.wish, self.terms = rule, wish, terms
        self.rows: list[list[int]] = [[]]
        self.live = [0.0]  # their log-probabilities
        self.origins = [0]
        self.finished: list[Hypothesis] = []  # best first
        self.said: list[Token] = []
        self.error = ""

    @property
    def width(self) -> int:
        return self.rule.size + (0 if self.terms is None else self.terms.size)

    @property
    def last(self) -> bool:
        """Whether the next token is the last that there may be."""
        return len(self.rows[0]) + 1 == self.wish.limit

    @property
    def most(self) -> int:
        return self.wish.limit

    @property
    def forced(self) -> Sequence[int]:
        return [*self.wish.prefix, *(() if self.terms is None else sorted(self.terms.tokens))]

    def take(self, scores: list[float], origins: list[int], tokens: list[int]) -> None:
        """The best extensions, best first: which row each goes on from, with which token."""
        size, width, length, last = self.rule.size, self.width, len(self.rows[0]) + 1, self.last
        kept: list[tuple[float, int, int]] = []
        for rank, (score, origin, token) in enumerate(zip(scores, origins, tokens, strict=True)):
            if score == -np.inf or len(kept) == width:
                break
            if token not in self.rule.ends and not last:
                kept.append((score, origin, token))
            elif rank < size:
                said = [] if token in self.rule.ends else [token]
                self._finish(self.rows[origin] + said, score, length)
        if not kept and not self.finished and self.terms is not None:
            self.error = UNMET
        elif not kept and not self.finished:  # nothing may follow
            for row, log_prob in zip(self.rows, self.live, strict=True):
                self._finish(row, log_prob, max(1, len(row)))
        if not kept or self._done(length, kept[0][0]):
            kept = []
        self.live = [score for score, _, _ in kept]
        self.origins = [origin for _, origin, _ in kept]
        self.rows = [[*self.rows[origin], token] for _, origin, token in kept]
        if self.terms is not None:
            self.terms.follow((origin, token) for _, origin, token in kept)

    def best(self) -> list[Hypothesis]:
        return self.finished[: self.rule.n_best]

    def drop(self, number: int) -> None:
        self.rows, self.origins = [], []

    def _finish(self, tokens: list[int], log_prob: float, length: int) -> None:
        """Keep a hypothesis if it is among the best; among equals the first to come stays first."""
        self.finished.append(Hypothesis(tokens, normalised(log_prob, length, self.rule.alpha), log_prob))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.rule.size :]

    def _done(self, length: int, best_live: float) -> bool:
        """Whether to stop at this length, where the best live hypothesis has this log-probability."""
        if len(self.finished) < self.rule.size:
            return False
        if self.rule.early_stopping is True:
            return True
        if self.rule.early_stopping == "never" and self.rule.alpha > 0:
            length = self.wish.limit
        return normalised(best_live, length, self.rule.alpha) <= self.finished[-1].score


def beam_search(
    model: Decoder,
    source: Tensor,
    source_pos: Tensor | None,
    *,
    bos_id: int | None = None,
    eos_id: int,
    beam_size: int,
    max_new_tokens: Sequence[int],
    length_penalty: float = 1.0,
    n_best: int = 1,
    min_new_tokens: int = 0,
    early_stopping: EarlyStopping = False,
    prefix: Sequence[Sequence[int]] | None = None,
    forbidden: Sequence[int] = (),
    no_repeat_ngram_size: int = 0,
    cache: Choice | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` outputs of each row (B, S), best first, by the rule of ``Beaming``; all rows are decoded together.

    An encoder-decoder reads the rows as sources and begins with ``bos_id``, any other model takes them as prompts.
    ``prefix`` is the forced beginning of each output; it is part of it, in tokens, score and length. A row gets the same
    result in any batch.
    """
    assert not model.training, "decoding wants model.eval(): dropout would make the outputs random"
    given: Sequence[Sequence[int]] = [[]] * len(source) if prefix is None else prefix
    if len(max_new_tokens) != len(source) or len(given) != len(source):
        raise UserError(
            f"{len(source)} sentences, but {len(max_new_tokens)} max_new_tokens and {len(given)} prefixes: one each is wanted"
        )
    rule = Beaming(
        beam_size, eos_id, n_best=n_best, length_penalty=length_penalty, early_stopping=early_stopping,
        min_new_tokens=min_new_tokens, forbidden=forbidden, no_repeat_ngram_size=no_repeat_ngram_size,
    )  # fmt: skip
    wishes = [Wish(limit, begin) for limit, begin in zip(max_new_tokens, given, strict=True)]
    for i, wish in enumerate(wishes):
        wish.check(i, eos_id)
    if not wishes:
        return []
    real = torch.ones_like(source, dtype=torch.bool) if source_pos is None else source_pos >= 0
    rows = [row[there].tolist() for row, there in zip(source, real, strict=True)]
    reads = hasattr(model, "encode")
    longest = max((1 if reads else len(row)) + wish.limit for row, wish in zip(rows, wishes, strict=True))
    engine = Engine(model, max_len=longest, cache=cache)
    requests = [
        engine.submit([bos_id], Beams(rule, wish._replace(before=[bos_id])), source=row) if reads and bos_id is not None
        else engine.submit(row, Beams(rule, wish._replace(before=row)))
        for row, wish in zip(rows, wishes, strict=True)
    ]  # fmt: skip
    return [request.result() for request in requests]


def _forced(beams: Sequence[Beams]) -> list[int]:
    """What each request must say now, -1 for anything."""
    return [-1 if len(b.rows[0]) >= len(b.wish.prefix) else b.wish.prefix[len(b.rows[0])] for b in beams]


def _free(values: Floats, beams: Sequence[Beams]) -> Floats:
    """Log-probabilities (R, W, k), where tokens that the model was told cost nothing."""
    told = [len(beam.rows[0]) < beam.wish.certain for beam in beams]
    return np.where(np.array(told)[:, None, None] & np.isfinite(values), 0.0, values) if any(told) else values


def _best_extensions(
    beams: Sequence[Beams], values: Floats, ids: Ints, k: int
) -> Iterable[tuple[list[float], list[int], list[int]]]:
    """The k best extensions of each request: log-probabilities, the rows they extend, their last tokens; NaN comes first."""
    requests, width, per_row = values.shape
    if width == 1:  # those of one row are in order
        found = zip(beams, values[:, 0].tolist(), ids[:, 0].tolist(), strict=True)
        return [
            ([beam.live[0] + value for value in own], [0] * per_row, tokens) for beam, own, tokens in found
        ]
    total = (np.array([beam.live for beam in beams])[:, :, None] + values).reshape(requests, -1)
    order = np.where(np.isnan(total), -np.inf, -total).argsort(1, kind="stable")[:, :k]
    request = np.arange(requests)[:, None]
    columns = total[request, order], order // per_row, ids.reshape(requests, -1)[request, order]
    return zip(*(column.tolist() for column in columns), strict=True)
