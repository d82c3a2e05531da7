"""The interface of a decoder, its padded inputs, and the outputs of decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from polyhead.core.array_types import Floats
from polyhead.core.errors import NotFiniteError
from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.device import move_tensor
from polyhead.nn.kv import EncoderMemory
from polyhead.nn.positions import AnyPositions, Positions


class Decoder(Protocol):
    """A model that predicts next tokens. One with ``encode`` also reads a source, others only a prompt."""

    training: bool

    @property
    def vocab_size(self) -> int: ...

    @property
    def cache_shape(self) -> CacheShape: ...

    @property
    def head(self) -> Callable[[Tensor], Tensor]: ...

    def decode(
        self, tokens: Tensor, pos: AnyPositions, cache: Cache | None, memory: list[EncoderMemory] | None
    ) -> Tensor: ...

    def decode_features(
        self, tokens: Tensor, pos: AnyPositions, cache: Cache | None, memory: list[EncoderMemory] | None
    ) -> Tensor: ...


def encode_of(model: Decoder) -> Callable[..., list[EncoderMemory]] | None:
    """The encoder of a model; None if it reads no source."""
    return getattr(model, "encode", None)


def decode_greedy_of(model: Decoder) -> Any:
    """Several greedy steps in one call, if the kernels have set it on the model; else None."""
    return getattr(model, "decode_greedy", None)


class GreedyPlan(NamedTuple):
    """Steps that some requests would take alike: each row continues with its most likely allowed token."""

    n_steps: int  # maximum number of steps
    banned_ids: Sequence[int]
    eos_ids: Sequence[int]  # tokens after which the steps end


class Hypothesis(NamedTuple):
    """One output: tokens without start and end, score, and the log-probability that the score is made of."""

    tokens: list[int]
    score: float
    log_prob: float


TopLogprobs = tuple[tuple[int, float], ...]  # tokens with their log-probabilities, the most likely first


class TokenOutput(NamedTuple):
    """A new token of a sequence, its log-probability under the model, and whether it ends the sequence."""

    row: int
    id: int
    log_prob: float
    is_last: bool
    top_logprobs: TopLogprobs = ()  # the most likely tokens at this position, if requested


def normalize_score(log_prob: float, length: int, length_penalty: float) -> float:
    """log P(y | x) / |y| ** length_penalty; |y| counts the end token (Wu et al., 2016, without their 5)."""
    score: float = log_prob / length**length_penalty
    return score


def to_host(log_probs: Tensor) -> Floats:
    """Log-probabilities in double precision, in which they are summed; NaN is a NotFiniteError."""
    host: Floats = log_probs.double().cpu().numpy()
    if np.isnan(host).any():
        raise NotFiniteError
    return host


def require_finite(x: Tensor) -> Tensor:
    """Return an output of a model; NaN or infinity is a NotFiniteError."""
    if not bool(x.isfinite().all()):
        raise NotFiniteError
    return x


def pad_next_inputs(rows: Sequence[Sequence[int]], cached_lens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Token ids and positions (B, S) of the next tokens of rows with so many cached tokens; -1 at padding."""
    width = max(map(len, rows))
    tokens = [[*row, *[0] * (width - len(row))] for row in rows]
    pos = [
        [*range(n, n + len(row)), *[-1] * (width - len(row))]
        for n, row in zip(cached_lens, rows, strict=True)
    ]
    return torch.tensor(tokens), torch.tensor(pos)


def move_inputs(tokens: Tensor, pos: Tensor, device: torch.device) -> tuple[Tensor, AnyPositions]:
    """Token ids and positions of the CPU on the device of a model, which then also has the originals."""
    if device.type == "cpu":
        return tokens, pos
    return move_tensor(tokens, device), Positions(move_tensor(pos, device), pos)


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Token ids and positions (B, S) of rows of different lengths; positions are None without padding."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)[:, None]
    if min(map(len, rows)) == longest:
        return tokens, None
    pos = torch.arange(longest, device=device).expand(len(rows), -1)
    return tokens, torch.where(pos < lengths, pos, -1)
