"""Encode texts in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.core.errors import check_int
from polyhead.data.batching.encoder_inputs import EncoderInput, collate_encoder_inputs
from polyhead.data.batching.length_bucketing import plan_eval_batches
from polyhead.models import CausalLM
from polyhead.nn.device import place_batch
from polyhead.nn.positions import AnyPositions, plain_positions
from polyhead.tokenizers.tokenizer import Tokenizer

_CPU_BATCH_TOKENS = 512  # tokens whose activations stay in the cache of a core from layer to layer


def limit_batch_tokens(model: nn.Module, batch_tokens: int) -> int:
    """Tokens per batch: ``batch_tokens``, or fewer on a CPU, which is busy with few already."""
    check_int("batch_tokens", batch_tokens, 1)
    is_cpu = next(model.parameters()).device.type == "cpu"
    return min(batch_tokens, _CPU_BATCH_TOKENS) if is_cpu else batch_tokens


@torch.inference_mode()
def encode_in_batches(
    model: Any, rows: Sequence[EncoderInput], tokenizer: Tokenizer, batch_tokens: int
) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
    """Encode rows with ``model.encoder`` in batches.

    Yields the indices of some rows, their vectors (B, T, C) and their positions (B, T); the order is
    arbitrary.
    """
    for numbers, inputs in iter_batches(model, rows, tokenizer, batch_tokens):
        yield numbers, model.encoder(*inputs), plain_positions(inputs[1])


@torch.inference_mode()
def encode_layers_in_batches(
    model: Any, rows: Sequence[EncoderInput], tokenizer: Tokenizer, batch_tokens: int, layers: Sequence[int]
) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
    """As ``encode_in_batches``, with the vectors of some layers, (B, L, T, C): 0 is the embeddings."""
    for numbers, inputs in iter_batches(model, rows, tokenizer, batch_tokens):
        # a language model is its own encoder
        encoder = model if isinstance(model, CausalLM) else model.encoder
        states = encoder.stack.hidden_states(encoder.embedding(*inputs), inputs[1])
        vectors = torch.stack([states[layer] for layer in layers], 1)
        yield numbers, vectors, plain_positions(inputs[1])


def iter_batches(
    model: Any, rows: Sequence[EncoderInput], tokenizer: Tokenizer, batch_tokens: int
) -> Iterator[tuple[list[int], tuple[Tensor, AnyPositions, Tensor | None]]]:
    """Yield the indices of some rows and the model's arguments for them; the order is arbitrary."""
    lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
    for batch in plan_eval_batches(lengths, lengths, limit_batch_tokens(model, batch_tokens)):
        batch_rows = [rows[i] for i in batch]
        inputs = collate_encoder_inputs(
            [row.ids for row in batch_rows], [row.second_start for row in batch_rows], tokenizer.pad_id
        )
        placed, host = place_batch(model, inputs)
        yield batch.tolist(), placed.model_args(model.config.n_segments, host)
