"""Decode given tokens one at a time through a cache, and measure the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from polyhead.cache.factory import make_cache
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.cache import Cache
from polyhead.nn.kv import EncoderMemory


class Stepper:
    """Decoder with a cache that is fed target tokens step by step; ``position`` is that of the next token."""

    def __init__(self, model: Seq2Seq, source: Tensor, max_len: int) -> None:
        self.model, self.position = model.eval(), 0
        with torch.inference_mode():
            self.memory: list[EncoderMemory] = [
                layer.contiguous_for_decoding() for layer in model.encode(source)
            ]
        self.cache: Cache = make_cache(None, model.cache_shape, len(source), max_len)

    @torch.inference_mode()
    def feed(self, tokens: Tensor) -> Tensor:
        """Feed the next tokens of every row: (B, T) -> logits (B, T, V)."""
        pos = torch.arange(self.position, self.position + tokens.size(1)).expand(len(tokens), -1)
        self.position += tokens.size(1)
        self.cache.prepare_step(range(len(tokens)), pos)
        return self.model.decode(tokens, pos, self.cache, self.memory)


def decode_stepwise(model: Seq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """Logits (B, T, V) of the targets (B, T), fed one token at a time."""
    stepper = Stepper(model, source, target.size(1))
    return torch.cat([stepper.feed(target[:, t : t + 1]) for t in range(target.size(1))], 1)


def cache_bytes_per_token(model: Seq2Seq) -> float:
    """Bytes that one more token of one row adds to the cache: keys, values, and 8 bytes for its position."""
    sizes, length = [], 64
    for n in (length, 2 * length):
        stepper = Stepper(model, torch.full((1, 2), 2), n)
        stepper.feed(torch.full((1, n), 2))
        sizes.append(stepper.cache.nbytes)
    return (sizes[1] - sizes[0]) / length
