"""Greedy search: always the likeliest token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyhead.generate.state import Decoder, Hypothesis, Rules, State, normalised
from polyhead.registry import Choice


@torch.inference_mode()
def greedy(
    model: Decoder,
    source: Tensor,
    source_pos: Tensor | None,
    *,
    bos_id: int | None = None,
    eos_id: int,
    max_new_tokens: Sequence[int],
    length_penalty: float = 1.0,
    min_new_tokens: int = 0,
    prefix: Sequence[Sequence[int]] | None = None,
    certain: int = 0,
    forbidden: Sequence[int] = (),
    cache: Choice | None = None,
) -> list[Hypothesis]:
    """One output for each source sentence (B, S): the likeliest token at each step, as beam search with one beam.

    Scores, ``prefix``, ``certain``, ``forbidden``, ``min_new_tokens`` and ``max_new_tokens`` mean what they mean for ``beam_search``.
    """
    rules = Rules(eos_id, max_new_tokens, min_new_tokens, [[]] * len(source) if prefix is None else prefix, certain, forbidden)
    rules.check(len(source))
    if not len(source):
        return []
    outputs: list[list[int]] = [[] for _ in max_new_tokens]
    log_probs, lengths = np.zeros(len(source)), np.zeros(len(source), dtype=np.int64)
    live = np.arange(len(source))  # the sentences that are still decoded
    limits = np.array(max_new_tokens)
    state = State(model, source, source_pos, rules, cache, bos_id)
    tokens = state.first
    while len(live):
        values, ids = state.extend(tokens, 1)
        tokens = ids[:, 0]
        log_probs[live] += values[:, 0]
        lengths[live] = state.step
        for sentence, token in zip(live.tolist(), tokens.tolist(), strict=True):
            if token != eos_id:
                outputs[sentence].append(token)
        going = np.flatnonzero((tokens != eos_id) & (limits[live] > state.step))
        if 0 < len(going) < len(live):
            state.select(going, going)
        live, tokens = live[going], tokens[going]
    return [
        Hypothesis(tokens, normalised(log_prob, length, length_penalty), log_prob)
        for tokens, log_prob, length in zip(outputs, log_probs.tolist(), lengths.tolist(), strict=True)
    ]
