"""Beam search; with one beam it is greedy search."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import accumulate
from math import isnan
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from polyhead.core.array_types import Floats, Ints
from polyhead.core.choice import Choice
from polyhead.core.errors import NOT_FINITE, UserError
from polyhead.generation.constraints.lexical_constraints import (
    UNMET_TERMS_ERROR,
    Extension,
    LexicalConstraints,
)
from polyhead.generation.constraints.unfinished_word import UnfinishedWord
from polyhead.generation.decoding.sampling import banned_ngrams, topk_log_probs
from polyhead.generation.engine.engine import Engine
from polyhead.generation.engine.request import (
    Decoder,
    DecodingState,
    GreedyPlan,
    Hypothesis,
    TokenOutput,
    normalize_score,
)
from polyhead.generation.engine.workers import Workers, count_workers
from polyhead.generation.shortlist.shortlist import ShortlistHead
from polyhead.grammar.grammar_constraint import DEAD_END_ERROR, GrammarConstraint

EarlyStopping = bool | Literal["never"]


class BeamRequest(NamedTuple):
    """Length limit, forced prefix and context of the output of one request."""

    max_new_tokens: int  # end of sentence included
    prefix: Sequence[int] = ()  # forced first tokens of the output
    unscored_len: int = 0  # tokens of the prefix with log-probability 0: inputs of the model, not predictions
    context_ids: Sequence[int] = ()  # tokens before the output, which count for no_repeat_ngram_size
    last_word: UnfinishedWord | None = None  # the word after the prefix

    @property
    def max_prefix_len(self) -> int:
        """The maximum number of tokens of the prefix and its last word."""
        return len(self.prefix) + (0 if self.last_word is None else self.last_word.max_tokens)

    def forced_ids(self, row: Sequence[int], banned_ids: Collection[int] = ()) -> Sequence[int]:
        """The only tokens that may follow a row; none if the row has the whole prefix and its last word."""
        if len(row) < len(self.prefix) or self.last_word is None:
            return self.prefix[len(row) : len(row) + 1]
        return self.last_word.next_tokens(row[len(self.prefix) :], banned_ids)

    def check(self, i: int, eos_id: int) -> None:
        """Raise a UserError that names sentence i if the request is invalid."""
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens of sentence {i} is {self.max_new_tokens}, expected at least 1")
        if len(self.prefix) > self.max_new_tokens:
            raise UserError(
                f"the prefix of sentence {i} has {len(self.prefix)} tokens, more than max_new_tokens "
                f"({self.max_new_tokens})"
            )
        if eos_id in self.prefix:
            raise UserError(f"the prefix of sentence {i} contains the end-of-sentence token {eos_id}")


class BeamSearchStrategy:
    """Beam search settings: the ``n_best`` outputs y by log P(y | x) / |y| ** length_penalty, best first.

    |y| counts the end of the sentence. Each step extends the live hypotheses by one token and considers the
    2x beam_size best extensions, with several end tokens beam_size more for each: those among the first
    beam_size that end are finished, the best beam_size of the rest stay live. At its length limit a
    hypothesis is finished as it is; if no token is allowed after any hypothesis and none is finished, all of
    them are. A request is done when no hypothesis is live, or when beam_size hypotheses are finished and
    ``early_stopping`` is

    - ``True``: at once;
    - ``False``: and the best live one, scored at its present length, does not beat the worst finished one;
    - ``"never"``: and the best live one cannot become better than the worst finished one at any length:
      log-probabilities only fall, so its bound is its present log-probability at the maximum length
      (at the present length if length_penalty is negative).

    These are the rules of Hugging Face ``generate``. One beam with early stopping is greedy search, at the
    same cost. ``extra_eos_ids`` end an output like the end of sentence: many models have several end tokens.
    ``min_new_tokens`` must precede any of them, ``bad_token_ids`` are banned, and no n-gram of
    ``no_repeat_ngram_size`` tokens occurs twice. With a ``grammar`` every output matches it. A request may
    have ``LexicalConstraints``, phrases that its output must contain: it keeps one more hypothesis for each
    of their tokens, and the constraints select the live ones.
    """

    def __init__(
        self,
        beam_size: int,
        eos_id: int,
        *,
        extra_eos_ids: Sequence[int] = (),
        n_best: int = 1,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        min_new_tokens: int = 0,
        bad_token_ids: Sequence[int] = (),
        no_repeat_ngram_size: int = 0,
        grammar: GrammarConstraint | None = None,
    ) -> None:
        if not 1 <= n_best <= beam_size:
            raise UserError(f"n_best is {n_best}, expected 1 to beam_size ({beam_size})")
        self.beam_size, self.n_best, self.length_penalty = beam_size, n_best, length_penalty
        self.early_stopping = early_stopping
        self.min_new_tokens = min_new_tokens
        self.bad_token_ids = list(bad_token_ids)
        self.no_repeat_ngram_size = no_repeat_ngram_size
        self.grammar = grammar
        self.eos_ids = {eos_id, *extra_eos_ids}
        # beam_size of these stay live, however many end
        self.num_candidates = (
            1 if beam_size == 1 and early_stopping is True else (1 + len(self.eos_ids)) * beam_size
        )

    def advance(
        self, states: Sequence[DecodingState], logits: Tensor, shortlist_head: ShortlistHead | None = None
    ) -> None:
        """Advance each state by one token; states of equal width and equal permission to end run together."""
        beams = cast("Sequence[BeamState]", states)
        kinds = [(len(beam.rows), len(beam.rows[0]) < self.min_new_tokens) for beam in beams]
        row_ends = list(accumulate(width for width, _ in kinds))
        for width, bans_eos in dict.fromkeys(kinds):
            members = [i for i, kind in enumerate(kinds) if kind == (width, bans_eos)]
            group_logits = logits
            if len(members) < len(beams):
                rows = [row for i in members for row in range(row_ends[i] - width, row_ends[i])]
                group_logits = logits[torch.tensor(rows, device=logits.device)]
            banned = [*self.bad_token_ids, *(self.eos_ids if bans_eos else ())]
            self._advance_group([beams[i] for i in members], group_logits, width, banned, shortlist_head)

    def plan_greedy(self, states: Sequence[DecodingState]) -> GreedyPlan | None:
        """The next steps with one beam, as long as nothing but its tokens decides about them."""
        beams = cast("Sequence[BeamState]", states)
        has_rules = self.no_repeat_ngram_size > 0 or self.grammar is not None
        if self.num_candidates > 1 or has_rules or any(beam.constraints is not None for beam in beams):
            return None
        lengths = [len(beam.rows[0]) for beam in beams]
        bans_eos = {length < self.min_new_tokens for length in lengths}
        if any(beam.request.forced_ids(beam.rows[0]) for beam in beams) or len(bans_eos) > 1:
            return None
        limits = [beam.max_new_tokens - length for beam, length in zip(beams, lengths, strict=True)]
        if not bans_eos.pop():
            return GreedyPlan(min(limits), self.bad_token_ids, [*self.eos_ids])
        n_steps = min(*limits, self.min_new_tokens - max(lengths))
        return GreedyPlan(n_steps, [*self.bad_token_ids, *self.eos_ids], [])

    def extend_greedy(self, states: Sequence[DecodingState], ids: Tensor, log_probs: Tensor) -> None:
        """Extend the only row of each state."""
        columns = zip(states, ids.T.tolist(), log_probs.T.tolist(), strict=True)
        for beam, tokens, values in columns:
            assert isinstance(beam, BeamState)
            for token, value in zip(tokens, values, strict=True):
                beam.extend([beam.log_probs[0] + value], [0], [token])

    def _advance_group(
        self,
        beams: Sequence[BeamState],
        logits: Tensor,
        width: int,
        banned_ids: list[int],
        shortlist_head: ShortlistHead | None,
    ) -> None:
        repeated_ids = [
            banned_ngrams([*b.request.context_ids, *row], self.no_repeat_ngram_size)
            for b in beams
            for row in b.rows
            if self.no_repeat_ngram_size
        ]
        needs_bans = any(beam.constraints is not None or beam.request.last_word for beam in beams)
        barred_ids = (
            [{*banned_ids, *tokens} for tokens in repeated_ids or [[]] * len(logits)] if needs_bans else []
        )
        forced_ids = _list_forced_ids(beams, barred_ids)
        if shortlist_head is not None:
            banned_ids = shortlist_head.column_ids(banned_ids)
            repeated_ids = [shortlist_head.column_ids(tokens) for tokens in repeated_ids]
        columns = forced_ids if shortlist_head is None else list(map(shortlist_head.column_ids, forced_ids))
        rows = [row for beam in beams for row in beam.rows]
        masked_logits = None if self.grammar is None else self.grammar.mask_logits(logits, rows)
        candidates = topk_log_probs(
            logits, self.num_candidates, banned_ids, columns, repeated_ids, masked_logits
        )
        values, ids = (x.cpu().numpy().reshape(len(beams), width, -1) for x in candidates)
        ids = ids if shortlist_head is None else shortlist_head.tokens[ids]
        values = _zero_unscored(values, beams)
        best = _select_extensions(beams, values, ids, self.num_candidates)
        for i, (beam, (scores, origins, tokens)) in enumerate(zip(beams, best, strict=True)):
            if isnan(scores[0]):
                beam.error = NOT_FINITE
            elif self.grammar is not None and scores[0] == -np.inf and not beam.finished_hypotheses:
                beam.error = DEAD_END_ERROR
            elif beam.constraints is None:
                beam.extend(scores, origins, tokens)
            else:
                beam_rows = slice(width * i, width * (i + 1))
                extensions: dict[Extension, float] = dict(
                    zip(zip(origins, tokens, strict=True), scores, strict=True)
                )
                best_per_row = zip(
                    beam.log_probs, values[i, :, 0].tolist(), ids[i, :, 0].tolist(), strict=True
                )
                extensions |= {
                    (row, token): live + value for row, (live, value, token) in enumerate(best_per_row)
                }
                proposals = beam.constraints.propose_extensions(
                    beam.log_probs, logits[beam_rows], barred_ids[beam_rows], shortlist_head
                )
                allowed_ids = forced_ids[beam_rows] or [()] * width
                extensions |= {
                    (row, token): score
                    for (row, token), score in proposals.items()
                    if not allowed_ids[row] or token in allowed_ids[row]
                }
                beam.extend(
                    *beam.constraints.select_extensions(
                        beam.rows, extensions, beam.width, self.eos_ids, beam.is_last_step
                    )
                )


class BeamState:
    """The state of one request: its strategy, live hypotheses and finished hypotheses."""

    def __init__(
        self,
        strategy: BeamSearchStrategy,
        request: BeamRequest,
        constraints: LexicalConstraints | None = None,
    ) -> None:
        self.strategy, self.request, self.constraints = strategy, request, constraints
        self.rows: list[list[int]] = [[]]
        self.log_probs = [0.0]  # of the rows
        self.parent_rows = [0]
        self.finished_hypotheses: list[Hypothesis] = []  # best first
        self.new_tokens = deque[TokenOutput]()
        self.error = ""

    @property
    def width(self) -> int:
        return self.strategy.beam_size + (0 if self.constraints is None else self.constraints.num_tokens)

    @property
    def is_last_step(self) -> bool:
        """Whether the next token is the last one within ``max_new_tokens``."""
        return len(self.rows[0]) + 1 == self.request.max_new_tokens

    @property
    def max_new_tokens(self) -> int:
        return self.request.max_new_tokens

    @property
    def forced_tokens(self) -> Sequence[int]:
        word = self.request.last_word
        return [
            *self.request.prefix,
            *(() if word is None else sorted(word.inner_tokens)),
            *(() if self.constraints is None else sorted(self.constraints.tokens)),
        ]

    def extend(self, scores: list[float], parent_rows: list[int], tokens: list[int]) -> None:
        """Apply the best extensions, best first: the row that each extends, and its token."""
        size, width, is_last = self.strategy.beam_size, self.width, self.is_last_step
        length = len(self.rows[0]) + 1
        live: list[tuple[float, int, int]] = []
        for rank, (score, origin, token) in enumerate(zip(scores, parent_rows, tokens, strict=True)):
            if score == -np.inf or len(live) == width:
                break
            if token not in self.strategy.eos_ids and not is_last:
                live.append((score, origin, token))
            elif rank < size:  # an end counts only among the best extensions, as in Hugging Face generate
                new_ids = [] if token in self.strategy.eos_ids else [token]
                self._add_finished(self.rows[origin] + new_ids, score, length)
        if not live and not self.finished_hypotheses and self.constraints is not None:
            self.error = UNMET_TERMS_ERROR
        elif not live and not self.finished_hypotheses:  # no token is allowed
            for row, log_prob in zip(self.rows, self.log_probs, strict=True):
                self._add_finished(row, log_prob, max(1, len(row)))
        if not live or self._is_done(length, live[0][0]):
            live = []
        self.log_probs = [score for score, _, _ in live]
        self.parent_rows = [origin for _, origin, _ in live]
        self.rows = [[*self.rows[origin], token] for _, origin, token in live]
        if self.constraints is not None:
            self.constraints.commit((origin, token) for _, origin, token in live)

    def best_hypotheses(self) -> list[Hypothesis]:
        return self.finished_hypotheses[: self.strategy.n_best]

    def abort(self, number: int) -> None:
        self.rows, self.parent_rows = [], []

    def _add_finished(self, tokens: list[int], log_prob: float, length: int) -> None:
        """Keep a hypothesis if it is among the best; of equal ones the earlier stays first."""
        score = normalize_score(log_prob, length, self.strategy.length_penalty)
        self.finished_hypotheses.append(Hypothesis(tokens, score, log_prob, length))
        self.finished_hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished_hypotheses[self.strategy.beam_size :]

    def _is_done(self, length: int, best_log_prob: float) -> bool:
        """Whether to stop at this length, given the log-probability of the best live hypothesis."""
        if len(self.finished_hypotheses) < self.strategy.beam_size:
            return False
        if self.strategy.early_stopping is True:
            return True
        # longer is better then, so a live hypothesis may still win at the largest length
        if self.strategy.early_stopping == "never" and self.strategy.length_penalty > 0:
            length = self.request.max_new_tokens
        return (
            normalize_score(best_log_prob, length, self.strategy.length_penalty)
            <= self.finished_hypotheses[-1].score
        )


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
    bad_token_ids: Sequence[int] = (),
    no_repeat_ngram_size: int = 0,
    cache: Choice | None = None,
) -> list[list[Hypothesis]]:
    """Decode all rows (B, S) together: the ``n_best`` outputs of each, best first, by ``BeamSearchStrategy``.

    An encoder-decoder takes the rows as sources and starts with ``bos_id``; any other model takes them as
    prompts. ``prefix`` is the forced prefix of each output, and counts in its tokens, score and length. The
    result of a row does not depend on the batch.
    """
    assert not model.training, "decoding requires model.eval(): dropout would make the outputs random"
    prefixes: Sequence[Sequence[int]] = [[]] * len(source) if prefix is None else prefix
    if len(max_new_tokens) != len(source) or len(prefixes) != len(source):
        raise UserError(
            f"{len(source)} sentences, but {len(max_new_tokens)} max_new_tokens and {len(prefixes)} "
            "prefixes: expected one each"
        )
    strategy = BeamSearchStrategy(
        beam_size, eos_id, n_best=n_best, length_penalty=length_penalty, early_stopping=early_stopping,
        min_new_tokens=min_new_tokens, bad_token_ids=bad_token_ids, no_repeat_ngram_size=no_repeat_ngram_size,
    )  # fmt: skip
    specs = [BeamRequest(limit, tokens) for limit, tokens in zip(max_new_tokens, prefixes, strict=True)]
    for i, spec in enumerate(specs, 1):
        spec.check(i, eos_id)
    if not specs:
        return []
    is_token = torch.ones_like(source, dtype=torch.bool) if source_pos is None else source_pos >= 0
    rows = [row[mask].tolist() for row, mask in zip(source, is_token, strict=True)]
    has_encoder = model.encode is not None
    longest = max(
        (1 if has_encoder else len(row)) + spec.max_new_tokens for row, spec in zip(rows, specs, strict=True)
    )
    n_workers = count_workers(model, beam_size * len(rows))
    workers = Workers(lambda: Engine(model, max_len=longest, cache=cache), n_workers)
    for i, (row, spec) in enumerate(zip(rows, specs, strict=True)):
        prompt = [bos_id] if has_encoder and bos_id is not None else row
        state = BeamState(strategy, spec._replace(context_ids=prompt))
        source_row = row if has_encoder and bos_id is not None else None
        workers.add(i, partial(Engine.submit, prompt=prompt, state=state, source=source_row))
    results = {i: request.result() for i, request in workers.run()}
    return [results[i] for i in range(len(rows))]


def _list_forced_ids(
    beams: Sequence[BeamState], banned_ids: Sequence[Collection[int]]
) -> list[Sequence[int]]:
    """The forced next tokens of each row; empty if no row has any."""
    requests = [(beam.request, row) for beam in beams for row in beam.rows]
    if all(len(row) >= request.max_prefix_len for request, row in requests):
        return []
    return [
        request.forced_ids(row, banned)
        for (request, row), banned in zip(requests, banned_ids or [()] * len(requests), strict=True)
    ]


def _zero_unscored(values: Floats, beams: Sequence[BeamState]) -> Floats:
    """Log-probabilities (R, W, k) with 0 for unscored prefix tokens."""
    is_unscored = [len(beam.rows[0]) < beam.request.unscored_len for beam in beams]
    return (
        np.where(np.array(is_unscored)[:, None, None] & np.isfinite(values), 0.0, values)
        if any(is_unscored)
        else values
    )


def _select_extensions(
    beams: Sequence[BeamState], values: Floats, ids: Ints, k: int
) -> Iterable[tuple[list[float], list[int], list[int]]]:
    """The k best extensions of each request: log-probabilities, extended rows, new tokens; NaN is first."""
    requests, width, per_row = values.shape
    if width == 1:  # the extensions of one row are sorted already
        columns_by_beam = zip(beams, values[:, 0].tolist(), ids[:, 0].tolist(), strict=True)
        return [
            ([beam.log_probs[0] + value for value in row_values], [0] * per_row, tokens)
            for beam, row_values, tokens in columns_by_beam
        ]
    total = (np.array([beam.log_probs for beam in beams])[:, :, None] + values).reshape(requests, -1)
    order = np.where(np.isnan(total), -np.inf, -total).argsort(1, kind="stable")[:, :k]
    request = np.arange(requests)[:, None]
    columns = total[request, order], order // per_row, ids.reshape(requests, -1)[request, order]
    return zip(*(column.tolist() for column in columns), strict=True)


def greedy_search(
    model: Decoder,
    source: Tensor,
    source_pos: Tensor | None,
    *,
    max_new_tokens: Sequence[int],
    **options: Any,
) -> list[Hypothesis]:
    """Decode one output per row (B, S) with the most likely token at each step: beam search with one beam.

    ``options`` are those of ``beam_search``.
    """
    hypotheses = beam_search(
        model, source, source_pos, beam_size=1, early_stopping=True, max_new_tokens=max_new_tokens, **options
    )
    return [best for (best,) in hypotheses]
