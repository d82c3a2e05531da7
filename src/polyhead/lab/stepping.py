"""Decoding given tokens one at a time through a cache, and what the cache costs."""

from __future__ import annotations

import torch
from torch import Tensor

from polyhead.cache.base import Cache
from polyhead.cache.make import make_cache
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.kv import Memory


class Stepper:
    """A decoder part of the way through its targets: rows of them, at the position they have reached."""

    def __init__(self, model: Seq2Seq, source: Tensor, max_len: int) -> None:
        self.model, self.at = model.eval(), 0
        with torch.inference_mode():
            self.memory: list[Memory] = [kept.kept() for kept in model.encode(source)]
        self.cache: Cache = make_cache(None, model.cache_shape, len(source), max_len)

    @torch.inference_mode()
    def feed(self, tokens: Tensor) -> Tensor:
        """The next tokens of every row, (B, T) -> logits (B, T, V)."""
        pos = torch.arange(self.at, self.at + tokens.size(1)).expand(len(tokens), -1)
        self.at += tokens.size(1)
        self.cache.begin(range(len(tokens)), pos)
        return self.model.decode(tokens, pos, self.cache, self.memory)


def stepwise(model: Seq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """Logits (B, T, V) of the targets (B, T), fed one token at a time."""
    stepper = Stepper(model, source, target.size(1))
    return torch.cat([stepper.feed(target[:, t : t + 1]) for t in range(target.size(1))], 1)


def bytes_per_token(model: Seq2Seq) -> float:
    """What one more token of one row adds to the cache: keys, values, and the 8 bytes of its position."""
    held, length = [], 64
    for n in (length, 2 * length):
        stepper = Stepper(model, torch.full((1, 2), 2), n)
        stepper.feed(torch.full((1, n), 2))
        held.append(stepper.cache.nbytes)
    return (held[1] - held[0]) / length
