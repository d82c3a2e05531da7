"""Speculative decoding: the model verifies several draft tokens in one step.

A draft token x that was sampled with probability q(x) is accepted with probability min(1, p(x) / q(x)), where
p is the distribution of plain sampling; a rejected one is replaced by a sample from max(0, p - q), and the
tokens after it are dropped. So every token is a sample from p, whatever the draft is (Leviathan et al., 2023,
sec. 2.3; Chen et al., 2023, theorem 1).
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.batch_decode import check_sampling_request, refuse
from polyhead.generation.decoding.sampling import RandomStreams, Sampling
from polyhead.generation.engine.incremental_decoder import IncrementalDecoder
from polyhead.generation.engine.request import Decoder, TokenOutput, to_host
from polyhead.grammar.grammar_constraint import DEAD_END_ERROR, GrammarConstraint

log = logging.getLogger("polyhead.generation")


class RequestDrafter:
    """Greedy draft tokens for a sampled text of one sequence.

    The engine accepts a draft token if plain decoding samples the same one, so the random numbers of the
    request, and with them its text, are those of plain decoding, whatever the draft is.
    """

    def __init__(
        self,
        proposer: Proposer,
        prompt: Sequence[int],
        sampling: Sampling,
        eos_ids: tuple[int, ...],
        max_new_tokens: int,
    ) -> None:
        self.proposer, self.prompt = proposer, list(prompt)
        self.context = DraftContext(
            replace(sampling, temperature=0.0), RandomStreams(0, 1), eos_ids, len(prompt) + max_new_tokens
        )
        self._drafter: Drafter | None = None  # starts with the first step that drafts
        self._is_broken = False

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """At most ``max_tokens`` tokens after the prompt and ``output_ids``; none if the source fails."""
        if self._is_broken or max_tokens < 1:
            return ()
        try:
            if self._drafter is None:
                self._drafter = self.proposer.start([self.prompt], self.context)
            (draft,) = self._drafter.propose([[*self.prompt, *output_ids]], [0], [max_tokens])
        except UserError as error:
            log.warning("a request continues without draft tokens: %s", error)
            self._is_broken = True
            return ()
        return draft.tokens


class DraftTokens(NamedTuple):
    """Draft tokens, and the probabilities (V,) that each was sampled with; None if they were not sampled."""

    tokens: Sequence[int]
    probs: Sequence[Tensor] | None = None


class DraftContext(NamedTuple):
    """What a drafter needs of a request."""

    sampling: Sampling
    random_streams: RandomStreams  # a text is drafted with its own stream
    eos_ids: tuple[int, ...]  # any of them ends a text
    max_total_len: int  # final number of tokens of the longest text


class Drafter(Protocol):
    """Draft tokens for some texts, a row each, step by step."""

    def propose(
        self, texts: Sequence[Sequence[int]], streams: Sequence[int], max_tokens: Sequence[int]
    ) -> list[DraftTokens]:
        """At most ``max_tokens[i]`` tokens after ``texts[i]``.

        They may depend only on this text and ``random_streams.streams[streams[i]]``.
        """

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i continues from the previous row ``rows[i]``; rows may repeat."""


class Proposer(Protocol):
    """A source of draft tokens."""

    def start(self, prompts: Sequence[Sequence[int]], context: DraftContext) -> Drafter:
        """Create a drafter for texts that start with these prompts."""


def speculative_generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    proposer: Proposer,
    *,
    sampling: Sampling,
    eos_id: int,
    extra_eos_ids: Sequence[int] = (),
    max_new_tokens: int,
    n: int = 1,
    seed: int = 0,
    row_offset: int = 0,
    max_len: int | None = None,
    batch_tokens: int = 2**62,
    cache: Choice | None = None,
    grammar: GrammarConstraint | None = None,
    refusals: dict[int, str] | None = None,
    prefix_ids: Sequence[int] = (),
) -> Generator[TokenOutput, set[int] | None, None]:
    """``polyhead.generation.generate.generate`` with draft tokens.

    At temperature 0 the tokens are the same, else their distribution is. If the draft tokens are not sampled,
    the tokens are exactly those of ``generate`` with this seed. (All of it up to rounding: a step of several
    tokens rounds other sums than a step of one.) A sequence gets at least one token per step, at most one
    more than was drafted. Prompts run together, in order, up to ``batch_tokens`` tokens at their ends.
    ``refusals`` are as in ``generate``.
    """
    check_sampling_request(prompts, max_new_tokens, n, seed, row_offset, max_len)
    lengths = [min(len(prompt) + max_new_tokens, max_len or 2**62) for prompt in prompts]
    start = 0
    while start < len(prompts):
        end = start + 1
        while end < len(prompts) and n * sum(lengths[start : end + 1]) <= batch_tokens:
            end += 1
        sequences = [list(prompt) for prompt in prompts[start:end] for _ in range(n)]
        decoder = IncrementalDecoder(model, end - start, max(lengths[start:end]), max_len, cache, prefix_ids)
        random_streams = RandomStreams(seed, len(sequences), row_offset + n * start)
        context = DraftContext(
            sampling, random_streams, (eos_id, *extra_eos_ids), max(map(len, sequences)) + max_new_tokens
        )
        yield from _decode_group(
            decoder, proposer, context, sequences, n, max_new_tokens, row_offset + n * start, grammar,
            start, refusals,
        )  # fmt: skip
        start = end


@torch.inference_mode()
def _decode_group(
    decoder: IncrementalDecoder,
    proposer: Proposer,
    context: DraftContext,
    sequences: list[list[int]],
    n: int,
    max_new_tokens: int,
    row_offset: int,
    grammar: GrammarConstraint | None,
    first_prompt: int,
    refusals: dict[int, str] | None,
) -> Generator[TokenOutput, set[int] | None, None]:
    """Decode sequences together, ``n`` per prompt, numbered from ``row_offset``; they grow in place.

    A prompt that the grammar leaves without a token ends, with its reason in ``refusals`` by its index; that
    of the first one is ``first_prompt``.
    """
    sampling = context.sampling
    live = list(range(len(sequences)))
    limits = [len(tokens) + max_new_tokens for tokens in sequences]
    prompt_lens = [len(tokens) for tokens in sequences]
    decoder.rewind(sequences[::n])
    drafter = proposer.start(sequences[::n], context)
    if n > 1:
        for part in (decoder, drafter):
            part.reorder([row // n for row in live])
    while live:
        texts = [sequences[row] for row in live]
        decoder.rewind(texts)
        # the last token is not drafted, and draft tokens see as much of the text as in plain steps
        max_tokens = [
            min(limits[row] - len(text) - 1, decoder.remaining_len(i, text))
            for i, (row, text) in enumerate(zip(live, texts, strict=True))
        ]
        drafts = drafter.propose(texts, live, max_tokens)
        assert all(len(draft.tokens) <= k for draft, k in zip(drafts, max_tokens, strict=True)), (
            "more draft tokens than requested"
        )
        drafted_texts = [[*text, *draft.tokens] for text, draft in zip(texts, drafts, strict=True)]
        logits = decoder.compute_logits(
            range(len(live)), drafted_texts, [1 + len(draft.tokens) for draft in drafts]
        )
        stopped: set[int] = set()
        matching, num_accepted = list(range(len(live))), 0  # rows with ``num_accepted`` accepted draft tokens
        while matching:
            next_logits = torch.stack([logits[i][num_accepted] for i in matching])
            outputs = [sequences[live[i]][prompt_lens[live[i]] :] for i in matching]
            masked_logits = next_logits if grammar is None else grammar.mask_logits(next_logits, outputs)
            sampling_logits = sampling.apply(
                masked_logits, [sequences[live[i]] for i in matching], context.eos_ids, outputs
            )
            draft_tokens = [draft_token(drafts[i], num_accepted) for i in matching]
            new_tokens = verify_draft(
                sampling_logits, draft_tokens, sampling, context.random_streams, [live[i] for i in matching]
            )
            token_ids = torch.tensor(new_tokens, device=next_logits.device)[:, None]
            refused: set[int] = set()
            if grammar is not None:
                # a masked token is sampled only if all are masked
                is_dead_end = masked_logits.gather(1, token_ids)[:, 0].isneginf().tolist()
                refused = {live[i] // n for i, is_dead in zip(matching, is_dead_end, strict=True) if is_dead}
            for prompt in refused:
                refuse(refusals, first_prompt + prompt, UserError(DEAD_END_ERROR))
                stopped |= {row_offset + row for row in live if row // n == prompt}
            log_probs = to_host(
                next_logits.log_softmax(-1, dtype=torch.float32).gather(1, token_ids)[:, 0]
            ).tolist()
            accepted = []
            for i, token, log_prob in zip(matching, new_tokens, log_probs, strict=True):
                row = live[i]
                if row // n in refused:
                    continue
                sequences[row].append(token)
                is_last = token in context.eos_ids or len(sequences[row]) == limits[row]
                stopped |= (yield TokenOutput(row_offset + row, token, log_prob, is_last)) or set()
                if is_last:
                    stopped.add(row_offset + row)
                elif num_accepted < len(drafts[i].tokens) and token == drafts[i].tokens[num_accepted]:
                    accepted.append(i)
            matching = [i for i in accepted if row_offset + live[i] not in stopped]
            num_accepted = num_accepted + 1
        live_indices = [i for i, row in enumerate(live) if row_offset + row not in stopped]
        if len(live_indices) < len(live):
            live = [live[i] for i in live_indices]
            if live:
                decoder.reorder(live_indices)
                drafter.reorder(live_indices)


class DraftToken(NamedTuple):
    """A draft token that was sampled, and the probabilities (V,) that it was sampled with."""

    token: int
    probs: Tensor


def draft_token(draft: DraftTokens, i: int) -> DraftToken | None:
    """The i-th draft token, if there is one and it was sampled."""
    return (
        DraftToken(draft.tokens[i], draft.probs[i])
        if draft.probs is not None and i < len(draft.tokens)
        else None
    )


def verify_draft(
    logits: Tensor,
    drafts: Sequence[DraftToken | None],
    sampling: Sampling,
    random_streams: RandomStreams,
    streams: Sequence[int],
) -> list[int]:
    """One token per row of logits (N, V): the draft token or another one, as a sample from softmax(logits).

    A draft token that was not sampled needs no rule of its own: q is 1 there, so it is accepted with
    probability p, and its replacement is distributed as in p. Sampling from p does both.
    """
    if sampling.temperature == 0:
        likeliest: list[int] = logits.argmax(-1).tolist()
        return likeliest
    log_weights = logits.to(torch.float64, copy=True)
    tokens: dict[int, int] = {}
    for i, draft in enumerate(drafts):
        if draft is None:
            continue
        p, q = log_weights[i].softmax(-1), draft.probs.double()
        if random_streams.streams[streams[i]].random() * float(q[draft.token]) < float(p[draft.token]):
            tokens[i] = draft.token
        else:
            residual = (p - q).clamp(min=0)
            # the residual is empty if p and q differ only by rounding
            log_weights[i] = residual.log() if bool(residual.any()) else log_weights[i]
    sampled_rows = [i for i in range(len(drafts)) if i not in tokens]
    if sampled_rows:
        tokens |= zip(
            sampled_rows,
            random_streams.sample(log_weights[sampled_rows], [streams[i] for i in sampled_rows]),
            strict=True,
        )
    return [tokens[i] for i in range(len(drafts))]
