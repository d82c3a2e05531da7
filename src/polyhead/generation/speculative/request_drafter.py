"""Draft tokens for one request of an engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from polyhead.core.errors import UserError
from polyhead.generation.decoding.sampling import RandomStreams, Sampling
from polyhead.generation.speculative.verify import DraftContext, Drafter, Proposer

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
