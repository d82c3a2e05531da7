"""Greedy search: always the likeliest token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyhead.generate.state import Decoder, Hypothesis, State, check_limits, constrain, normalised, to_host
from polyhead.registry import Choice


@torch.inference_mode()
def greedy(
    model: Decoder,
    source: Tensor,
    source_pos: Tensor | None,
    *,
    bos_id: int,
    eos_id: int,
    max_new_tokens: Sequence[int],
    length_penalty: float = 1.0,
    min_new_tokens: int = 0,
    prefix: Sequence[Sequence[int]] | None = None,
    cache: Choice = Choice("static"),
) -> list[Hypothesis]:
    """One output for each source sentence (B, S): the likeliest token at each step, as beam search with one beam.

    Scores, ``prefix``, ``min_new_tokens`` and ``max_new_tokens`` mean what they mean for ``beam_search``.
    """
    prefixes = [[]] * len(source) if prefix is None else list(prefix)
    check_limits(len(source), min_new_tokens, max_new_tokens, prefixes, eos_id)
    if not len(source):
        return []
    outputs: list[list[int]] = [[] for _ in max_new_tokens]
    log_probs, lengths = np.zeros(len(source)), np.zeros(len(source), dtype=np.int64)
    live = np.arange(len(source))  # the sentences that are still decoded
    limits = np.array(max_new_tokens)
    state = State(model, source, source_pos, cache, max(max_new_tokens))
    tokens = np.full(len(source), bos_id)
    while True:
        logits = state.logits(tokens)
        step = state.step - 1
        value, token = constrain(logits.log_softmax(-1), step, prefixes, eos_id, min_new_tokens).max(-1)
        tokens = token.cpu().numpy()
        log_probs[live] += to_host(value)
        lengths[live] = state.step
        for sentence, chosen in zip(live.tolist(), tokens.tolist(), strict=True):
            if chosen != eos_id:
                outputs[sentence].append(chosen)
        going = np.flatnonzero((tokens != eos_id) & (limits[live] > state.step))
        if not len(going):
            break
        if len(going) < len(live):
            state.select(going, going)
            live, prefixes = live[going], [prefixes[i] for i in going]
        tokens = tokens[going]
    return [
        Hypothesis(tokens, normalised(float(log_prob), int(length), length_penalty), float(log_prob))
        for tokens, log_prob, length in zip(outputs, log_probs, lengths, strict=True)
    ]
