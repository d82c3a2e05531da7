"""Sampling strategy, and the state of sampled sequences."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from polyhead.core.errors import NOT_FINITE
from polyhead.generation.constraints.unfinished_word import UnfinishedWord
from polyhead.generation.decoding.sampling import RandomStreams, Sampling, banned_ngrams, force_tokens
from polyhead.generation.engine.request import DecodingState, GreedyPlan, Hypothesis, TokenOutput, TopLogprobs
from polyhead.generation.shortlist.shortlist import ShortlistHead
from polyhead.grammar.grammar_constraint import DEAD_END_ERROR, GrammarConstraint


class SamplingStrategy:
    """Sampling settings, end tokens and grammar of the requests that are sampled together."""

    def __init__(self, sampling: Sampling, *eos_ids: int, grammar: GrammarConstraint | None = None) -> None:
        self.sampling, self.eos_ids, self.grammar = sampling, eos_ids, grammar

    def advance(
        self, states: Sequence[DecodingState], logits: Tensor, shortlist_head: ShortlistHead | None = None
    ) -> None:
        """Sample one token for each row of each state."""
        logits = logits if shortlist_head is None else shortlist_head.full_logits(logits)
        sequences, sampling = cast("Sequence[SampledSequences]", states), self.sampling
        histories = (
            [[*state.prompt, *row] for state in sequences for row in state.rows]
            if sampling.repetition_penalty != 1 or sampling.no_repeat_ngram_size
            else []
        )
        is_greedy = sampling.temperature == 0
        uniforms = (
            []
            if is_greedy
            else [
                number
                for state in sequences
                for number in state.random_streams.draw_uniforms(state.row_numbers)
            ]
        )
        outputs = [row for state in sequences for row in state.rows]
        masked_logits = logits if self.grammar is None else self.grammar.mask_logits(logits, outputs)
        forced_ids = [state.forced_ids(row) for state in sequences for row in state.rows]
        if any(forced_ids):
            masked_logits = force_tokens(masked_logits, forced_ids, logits)
            # the bans of these rows are in the forced tokens
            pairs = zip(histories, forced_ids, strict=False)
            histories = [[] if forced else text for text, forced in pairs]
        tokens = sampling.sample(masked_logits, histories, uniforms, self.eos_ids, outputs)
        token_ids = torch.from_numpy(np.array(tokens)[:, None]).to(logits.device)
        # in a dead end a masked token is sampled
        is_dead_end = (
            [False] * len(tokens)
            if self.grammar is None
            else masked_logits.gather(1, token_ids)[:, 0].isneginf().tolist()
        )
        all_probs = logits.log_softmax(-1, dtype=torch.float32)
        log_probs = all_probs.gather(1, token_ids).flatten().tolist()
        start = 0
        for state in sequences:
            end = start + len(state.rows)
            top = get_top_logprobs(all_probs[start:end], state.top_logprobs) if state.top_logprobs else []
            if any(is_dead_end[start:end]):
                state.error = DEAD_END_ERROR
            else:
                state.extend(tokens[start:end], log_probs[start:end], self.eos_ids, top)
            start = end

    def plan_greedy(self, states: Sequence[DecodingState]) -> GreedyPlan | None:
        """None: each token is returned before the next one is computed."""
        return None

    def extend_greedy(self, states: Sequence[DecodingState], ids: Tensor, log_probs: Tensor) -> None:
        raise AssertionError("no greedy steps are planned")


def get_top_logprobs(log_probs: Tensor, k: int) -> list[TopLogprobs]:
    """The k most likely tokens of each row of (N, V), with their log-probabilities."""
    values, ids = log_probs.topk(min(k, log_probs.size(1)))
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return [tuple(zip(*pair, strict=True)) for pair in pairs]


class SampledSequences:
    """``n`` sampled sequences of one prompt. The samples of each depend only on (seed, its number)."""

    def __init__(
        self,
        strategy: SamplingStrategy,
        prompt: Sequence[int],
        max_new_tokens: int,
        n: int = 1,
        seed: int = 0,
        row_offset: int = 0,
        top_logprobs: int = 0,
        last_word: UnfinishedWord | None = None,
    ) -> None:
        self.strategy, self.prompt, self.row_offset = strategy, list(prompt), row_offset
        self.width, self.max_new_tokens = n, max_new_tokens
        self.top_logprobs = top_logprobs  # number of most likely tokens reported with each token
        self.last_word = last_word  # the word that each sequence begins with
        self.random_streams = RandomStreams(seed, n, row_offset)
        self.row_numbers = list(range(n))  # sequence number of each row
        self.rows: list[list[int]] = [[] for _ in range(n)]
        self.parent_rows = self.row_numbers
        self.outputs = [Hypothesis([], 0.0, 0.0, 0)] * n
        self.new_tokens = deque[TokenOutput]()
        self.error = ""

    @property
    def forced_tokens(self) -> Sequence[int]:
        return () if self.last_word is None else sorted(self.last_word.inner_tokens)

    def forced_ids(self, row: Sequence[int]) -> Sequence[int]:
        """The only tokens that may follow a row; none if it has the whole unfinished word."""
        if self.last_word is None:
            return ()
        n = self.strategy.sampling.no_repeat_ngram_size
        return self.last_word.next_tokens(row, set(banned_ngrams([*self.prompt, *row], n)))

    def extend(
        self,
        tokens: list[int],
        log_probs: list[float],
        eos_ids: Sequence[int],
        top_logprobs: Sequence[TopLogprobs],
    ) -> None:
        """Append the next token to each row; rows that end are removed."""
        live_rows = []
        for i, (token, log_prob) in enumerate(zip(tokens, log_probs, strict=True)):
            if log_prob != log_prob:
                self.error = NOT_FINITE
                return
            row, number = self.rows[i], self.row_numbers[i]
            row.append(token)
            is_last = token in eos_ids or len(row) == self.max_new_tokens
            total = self.outputs[number].log_prob + log_prob
            output = row[:-1] if token in eos_ids else row
            self.outputs[number] = Hypothesis(output, total, total, len(row))
            self.new_tokens.append(
                TokenOutput(
                    self.row_offset + number,
                    token,
                    log_prob,
                    is_last,
                    top_logprobs[i] if top_logprobs else (),
                )
            )
            if not is_last:
                live_rows.append(i)
        self._select_rows(live_rows)

    def abort(self, number: int) -> None:
        self._select_rows(
            [i for i, row_number in enumerate(self.row_numbers) if row_number != number - self.row_offset]
        )

    def best_hypotheses(self) -> list[Hypothesis]:
        """All sequences in the order of their numbers; the score is the log-probability."""
        return self.outputs

    def _select_rows(self, kept_rows: list[int]) -> None:
        self.parent_rows = kept_rows
        if len(kept_rows) == len(self.rows):
            return
        self.rows = [self.rows[i] for i in kept_rows]
        self.row_numbers = [self.row_numbers[i] for i in kept_rows]
