"""Ensembles of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.cache.factory import CompositeCache
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.positions import AnyPositions


class Ensemble(nn.Module):
    """The mean of the probabilities of several models with the same vocabulary or classes.

    It is decoded and scored like a single model: its logits are the logarithms of that mean (Sutskever et
    al., 2014, sec. 3.6). Sizes and parts may differ, each member has its own cache, and the smallest max_len
    applies to all.
    """

    decode_greedy: Any = None

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)
        max_len = min(member.config.max_len for member in members)
        self.config = members[0].config.model_copy(update={"max_len": max_len})

    def forward(self, *inputs: AnyPositions) -> Tensor:
        """Inputs of each member -> log p of the tokens or classes, in fp32."""
        return log_mean_probs([member(*inputs) for member in self.members])

    def features(self, *inputs: AnyPositions) -> Tensor:
        """The inputs of the members' LM heads, concatenated: (B, T) -> (B, T, E + E' + ...)."""
        return torch.cat([member.features(*inputs) for member in self.members], -1)

    def head(self, features: Tensor) -> Tensor:
        """(..., E + E' + ...) -> log p (..., V)."""
        widths = [member.config.embedding_width for member in self.members]
        return log_mean_probs([member.head(x) for member, x in self._split_features(features, widths)])

    def encoder(self, tokens: Tensor, pos: AnyPositions = None, segments: Tensor | None = None) -> Tensor:
        """The hidden states of all members, concatenated: (B, T) -> (B, T, C + C' + ...)."""
        kinds = [segments if member.config.n_segments > 1 else None for member in self.members]
        hidden_states = [
            member.encoder(tokens, pos, kind) for member, kind in zip(self.members, kinds, strict=True)
        ]
        return torch.cat(hidden_states, -1)

    def apply_transform(self, x: Tensor) -> Tensor:
        """Apply the members' MLM transforms: concatenated hidden states -> concatenated head inputs."""
        widths = [member.config.d_model for member in self.members]
        return torch.cat(
            [member.apply_transform(part) for member, part in self._split_features(x, widths)], -1
        )

    def _split_features(self, x: Tensor, widths: list[int]) -> Iterator[tuple[Any, Tensor]]:
        """Each member with its slice of the features."""
        return zip(self.members, x.split(widths, -1), strict=True)

    @property
    def encode(self) -> Callable[..., list[EncoderMemory]] | None:
        """The source memory of all members' decoder layers; None if they read no source."""
        readers: list[Any] = [member.encode for member in self.members]
        if None in readers:
            return None
        return lambda source, pos=None: [memory for encode in readers for memory in encode(source, pos)]

    def decode(
        self,
        tokens: Tensor,
        pos: AnyPositions,
        cache: CompositeCache | None,
        memory: Sequence[EncoderMemory] | None,
    ) -> Tensor:
        """One decoding step: (N, T), (N, T) -> log p (N, T, V) of the next tokens."""
        return log_mean_probs(
            [member.decode(tokens, pos, *state) for member, *state in self._members_with_state(cache, memory)]
        )

    def decode_features(
        self,
        tokens: Tensor,
        pos: AnyPositions,
        cache: CompositeCache | None,
        memory: Sequence[EncoderMemory] | None,
    ) -> Tensor:
        """Like ``decode``, but returns the concatenated inputs of the heads."""
        return torch.cat(
            [
                member.decode_features(tokens, pos, *state)
                for member, *state in self._members_with_state(cache, memory)
            ],
            -1,
        )

    def _members_with_state(
        self, cache: CompositeCache | None, memory: Sequence[EncoderMemory] | None
    ) -> Iterator[tuple[Any, Cache | None, Sequence[EncoderMemory] | None]]:
        """Each member with its cache and its share of the source memory."""
        at = 0
        for i, member in enumerate(self.members):
            layers: int = member.config.decoder_layers
            yield (
                member,
                None if cache is None else cache.caches[i],
                None if memory is None else memory[at : at + layers],
            )
            at += layers

    @property
    def vocab_size(self) -> int:
        """Number of token ids, from 0."""
        return self.config.vocab_size

    @property
    def source_size(self) -> int:
        """Number of token ids of sources."""
        return self.config.encoder_spec.vocab_size

    @property
    def needs_padding_mask(self) -> bool:
        """Whether some part of any member needs to know which tokens are padding."""
        return any(member.needs_padding_mask for member in self.members)

    @property
    def cache_shape(self) -> CacheShape:
        """The cache shape of the first member, with those of the others in ``extra``."""
        first, *other_shapes = (member.cache_shape for member in self.members)
        shape: CacheShape = first._replace(extra=tuple(other_shapes))
        return shape


def log_mean_probs(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of softmax(x) over all x (..., V), in fp32 throughout."""
    total = logits[0].float().log_softmax(-1)
    for x in logits[1:]:  # a loop takes less memory and time than stacking them
        total = torch.logaddexp(total, x.float().log_softmax(-1))
    return total - math.log(len(logits))
