"""What decoding needs of a model, and what it finds."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from polyhead.cache.base import Cache, CacheShape
from polyhead.errors import UserError
from polyhead.nn.kv import Memory

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NOT_A_NUMBER = (
    "the model's output is not a number (NaN): its weights are damaged or overflow in this precision"
)


class Decoder(Protocol):
    """A model that goes on from tokens. One that also has ``encode`` reads a source, others only their own beginning."""

    training: bool

    @property
    def vocab_size(self) -> int: ...

    @property
    def cache_shape(self) -> CacheShape: ...

    def decode(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[Memory] | None
    ) -> Tensor: ...

    def read(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[Memory] | None
    ) -> Tensor: ...


class Hypothesis(NamedTuple):
    """One output: its tokens without begin and end, its score, and the log-probability the score is made of."""

    tokens: list[int]
    score: float
    log_prob: float


Ranked = tuple[tuple[int, float], ...]  # tokens with their log-probabilities, the likeliest first


class Token(NamedTuple):
    """One new token of one sequence, with its log-probability under the model, and whether the sequence ends with it."""

    row: int
    id: int
    log_prob: float
    last: bool
    top: Ranked = ()  # the likeliest tokens of that place, where they were asked for


def normalised(log_prob: float, length: int, length_penalty: float) -> float:
    """The score: log P(y | x) / |y| ** length_penalty; |y| counts the end of the sentence (Wu et al., 2016, without their 5)."""
    score: float = log_prob / length**length_penalty
    return score


def to_host(log_probs: Tensor) -> Floats:
    """Log-probabilities in double precision, where they are summed; NaN is a UserError."""
    host: Floats = log_probs.double().cpu().numpy()
    if np.isnan(host).any():
        raise UserError(NOT_A_NUMBER)
    return host
