"""Several models as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.cache.base import Cache, CacheShape
from polyhead.cache.joint import JointCache
from polyhead.nn.kv import Memory


class Ensemble(nn.Module):
    """The mean of the probabilities of several models, which share a vocabulary, or classes (Sutskever et al., 2014, sec. 3.6).

    It is decoded and scored as each of them: its logits are the logarithms of that mean. Their sizes and parts may
    differ, each has a cache of its own, and the shortest max_len is that of all.
    """

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)
        longest = min(member.config.max_len for member in members)
        self.config = members[0].config.model_copy(update={"max_len": longest})

    def forward(self, *inputs: Tensor | None) -> Tensor:
        """What each of them takes -> log p of the tokens, or classes, in fp32."""
        return log_mean([member(*inputs) for member in self.members])

    def features(self, *inputs: Tensor | None) -> Tensor:
        """What the heads read, that of one after that of the other: (B, T) -> (B, T, E + E' + ...)."""
        return torch.cat([member.features(*inputs) for member in self.members], -1)

    def head(self, features: Tensor) -> Tensor:
        """(..., E + E' + ...) -> log p (..., V)."""
        widths = [member.config.embedding_width for member in self.members]
        return log_mean([member.head(x) for member, x in self._parted(features, widths)])

    def encoder(self, tokens: Tensor, pos: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """As of encoders: the vectors of all of them, (B, T) -> (B, T, C + C' + ...)."""
        kinds = [segments if member.config.segments > 1 else None for member in self.members]
        read = [member.encoder(tokens, pos, kind) for member, kind in zip(self.members, kinds, strict=True)]
        return torch.cat(read, -1)

    def transformed(self, x: Tensor) -> Tensor:
        """As of masked language models: what the heads read of the encoders' vectors."""
        widths = [member.config.d_model for member in self.members]
        return torch.cat([member.transformed(part) for member, part in self._parted(x, widths)], -1)

    def _parted(self, x: Tensor, widths: list[int]) -> Iterator[tuple[Any, Tensor]]:
        """Each member with its features."""
        return zip(self.members, x.split(widths, -1), strict=True)

    @property
    def encode(self) -> Callable[..., list[Memory]]:
        """As of an encoder-decoder: what the decoder layers of all of them read of a source; others have no such thing."""
        readers: list[Any] = [member.encode for member in self.members]
        return lambda source, pos=None: [memory for read in readers for memory in read(source, pos)]

    def decode(
        self, tokens: Tensor, pos: Tensor, cache: JointCache | None, memory: Sequence[Memory] | None
    ) -> Tensor:
        """(N, T), (N, T) -> log p (N, T, V) of the next tokens."""
        return log_mean([member.decode(tokens, pos, *own) for member, *own in self._each(cache, memory)])

    def read(
        self, tokens: Tensor, pos: Tensor, cache: JointCache | None, memory: Sequence[Memory] | None
    ) -> Tensor:
        """As ``decode``, but what the heads read."""
        return torch.cat([member.read(tokens, pos, *own) for member, *own in self._each(cache, memory)], -1)

    def _each(
        self, cache: JointCache | None, memory: Sequence[Memory] | None
    ) -> Iterator[tuple[Any, Cache | None, Sequence[Memory] | None]]:
        """Each member with its cache, and what it reads of the sources."""
        at = 0
        for i, member in enumerate(self.members):
            layers: int = member.config.decoder_layers
            yield (
                member,
                None if cache is None else cache.parts[i],
                None if memory is None else memory[at : at + layers],
            )
            at += layers

    @property
    def vocab_size(self) -> int:
        """Tokens that they know, 0 and on."""
        return self.config.vocab_size

    @property
    def counts_tokens(self) -> bool:
        """Whether some part of any must be told which tokens are padding."""
        return any(member.counts_tokens for member in self.members)

    @property
    def cache_shape(self) -> CacheShape:
        """What a cache must hold for the first of them, and beside it for the others."""
        first, *others = (member.cache_shape for member in self.members)
        shape: CacheShape = first._replace(beside=tuple(others))
        return shape


def log_mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of softmax(x) of each x (..., V), in fp32 throughout."""
    total = logits[0].float().log_softmax(-1)
    for x in logits[1:]:  # one after another takes less memory, and time, than all of them stacked
        total = torch.logaddexp(total, x.float().log_softmax(-1))
    return total - math.log(len(logits))
