"""Greedy search: the most likely token at each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from polyhead.generation.decoding.beam_search import beam_search
from polyhead.generation.engine.request import Decoder, Hypothesis


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
