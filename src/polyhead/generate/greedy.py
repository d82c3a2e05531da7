"""Greedy search: always the likeliest token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from polyhead.generate.beam import beam_search
from polyhead.generate.decoder import Decoder, Hypothesis


def greedy(
    model: Decoder,
    source: Tensor,
    source_pos: Tensor | None,
    *,
    max_new_tokens: Sequence[int],
    **options: Any,
) -> list[Hypothesis]:
    """One output for each row (B, S): the likeliest token at each step, as beam search with one beam.

    ``options`` are those of ``beam_search``.
    """
    found = beam_search(
        model, source, source_pos, beam_size=1, early_stopping=True, max_new_tokens=max_new_tokens, **options
    )
    return [best for (best,) in found]
