"""What every decoding rule does the same way: feed tokens, drop and reorder rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polyhead.cache.base import Cache, CacheShape
from polyhead.errors import UserError
from polyhead.nn.kv import KV
from polyhead.registry import CACHE, Choice

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Hypothesis(NamedTuple):
    """One output: its tokens without begin and end, its score, and the log-probability the score is made of."""

    tokens: list[int]
    score: float
    log_prob: float


class Decoder(Protocol):
    """What decoding needs of an encoder-decoder."""

    training: bool

    @property
    def cache_shape(self) -> CacheShape: ...

    def encode(self, source: Tensor, source_pos: Tensor | None = None) -> list[KV]: ...

    def decode(self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[KV]) -> Tensor: ...


class State:
    """The rows being decoded, as many for each sentence as ``width``, all standing at the same position."""

    def __init__(
        self, model: Decoder, source: Tensor, source_pos: Tensor | None, cache: Choice, max_len: int
    ) -> None:
        assert not model.training, "decoding wants model.eval(): dropout would make the outputs random"
        self.model, self.device, self.step, self.width = model, source.device, 0, 1
        self.memory = model.encode(source, source_pos)
        self.sentences = len(source)
        self.cache: Cache = CACHE.build(cache, model.cache_shape, len(source), max_len)

    def logits(self, tokens: Ints) -> Tensor:
        """The next token of each row (N,) in, fp32 logits (N, V) of the one after it out."""
        pos = torch.full((len(tokens), 1), self.step, device=self.device)
        self.cache.begin(range(len(tokens)), pos)
        fed = torch.from_numpy(tokens).to(self.device)[:, None]
        self.step += 1
        return self.model.decode(fed, pos, self.cache, self.memory)[:, -1].float()

    def select(self, sentences: Ints, origin: Ints) -> None:
        """Keep some sentences; row i of the next step continues row ``origin[i]`` of the last one."""
        if len(sentences) < self.sentences:
            index = torch.from_numpy(sentences).to(self.device)
            self.memory = [kv.select(index) for kv in self.memory]
            self.sentences = len(sentences)
        self.cache.select(origin.tolist())


def normalised(log_prob: float, length: int, length_penalty: float) -> float:
    """The score: log P(y | x) / |y| ** length_penalty; |y| counts the end of the sentence (Wu et al., 2016, without their 5)."""
    score: float = log_prob / length**length_penalty
    return score


def check_limits(
    n: int, min_new: int, max_new: Sequence[int], prefix: Sequence[Sequence[int]], eos_id: int
) -> None:
    """The limits of n sentences make sense, or a UserError names the first sentence where they do not."""
    if len(max_new) != n or len(prefix) != n:
        raise UserError(
            f"{n} sentences, but {len(max_new)} limits of length and {len(prefix)} prefixes: one each is wanted"
        )
    if min_new < 0:
        raise UserError(f"min_new_tokens is {min_new}, wanted 0 or more")
    for i, (limit, given) in enumerate(zip(max_new, prefix, strict=True)):
        if limit < 1:
            raise UserError(f"max_new_tokens of sentence {i} is {limit}, wanted at least 1")
        if len(given) > limit:
            raise UserError(
                f"the prefix of sentence {i} has {len(given)} tokens, more than max_new_tokens ({limit})"
            )
        if eos_id in given:
            raise UserError(f"the prefix of sentence {i} contains the end-of-sentence token {eos_id}")


def constrain(
    logits: Tensor, step: int, prefix: Sequence[Sequence[int]], eos_id: int, min_new: int
) -> Tensor:
    """Forbid all but the prefix while there is one, and the end before ``min_new`` tokens: (N, V) log-probabilities.

    What is forbidden gets -inf and the rest keeps its probability, so scores stay those of the model.
    """
    if step < min_new:
        logits[:, eos_id] = float("-inf")
    width = len(logits) // len(prefix)
    forced = [(i, given[step]) for i, given in enumerate(prefix) if step < len(given)]
    for i, token in forced:
        rows = logits[i * width : (i + 1) * width]
        kept = rows[:, token].clone()
        rows.fill_(float("-inf"))
        rows[:, token] = kept
    return logits


def to_host(log_probs: Tensor) -> Floats:
    """Log-probabilities in double precision, where they are summed; NaN is a UserError."""
    host: Floats = log_probs.double().cpu().numpy()
    if np.isnan(host).any():
        raise UserError(
            "the model's output is not a number (NaN): its weights are damaged or overflow in this precision"
        )
    return host
