"""Texts through an encoder, many at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.data.batches import plan_reading
from polyhead.data.framed import Framed, collate_framed
from polyhead.errors import check_whole
from polyhead.nn.place import beside
from polyhead.text.tokenizer import Tokenizer

NEAR = 512  # tokens: their numbers stay near a core from one layer to the next


def at_once(model: nn.Module, most: int) -> int:
    """How many tokens are read together where ``most`` may be: on a CPU a few, as one is busy with few already."""
    check_whole("batch_tokens", most, 1)
    return min(most, NEAR) if next(model.parameters()).device.type == "cpu" else most


@torch.inference_mode()
def read(
    model: Any, rows: Sequence[Framed], tokenizer: Tokenizer, batch_tokens: int
) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
    """By a model with an encoder: the numbers of some rows, their vectors (B, T, C) and their positions (B, T), batch by batch in any order."""
    for numbers, given in batches(model, rows, tokenizer, batch_tokens):
        yield numbers, model.encoder(*given), given[1]


def batches(
    model: Any, rows: Sequence[Framed], tokenizer: Tokenizer, batch_tokens: int
) -> Iterator[tuple[list[int], tuple[Tensor, Tensor | None, Tensor | None]]]:
    """The numbers of some rows, and what the model is called with to read them, batch by batch in any order."""
    lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
    for batch in plan_reading(lengths, lengths, at_once(model, batch_tokens)):
        chosen = [rows[i] for i in batch]
        given = collate_framed([row.ids for row in chosen], [row.second for row in chosen], tokenizer.pad_id)
        yield batch.tolist(), beside(model, given).called(model.config.segments)
