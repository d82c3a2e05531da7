"""What every decoding rule does the same way: feed tokens, drop and reorder rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polyhead.cache.base import Cache, CacheShape
from polyhead.cache.make import make_cache
from polyhead.errors import UserError
from polyhead.generate.top import forced_tokens, likeliest
from polyhead.nn.kv import Memory
from polyhead.registry import Choice

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

    def encode(self, source: Tensor, source_pos: Tensor | None = None) -> list[Memory]: ...

    def decode(self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: list[Memory]) -> Tensor: ...


class Rules(NamedTuple):
    """What outputs must look like, for each sentence that is decoded."""

    eos_id: int
    max_new_tokens: Sequence[int]  # the end of the sentence included
    min_new_tokens: int  # before the end of the sentence
    prefix: Sequence[Sequence[int]]  # how the output must begin

    def check(self, n: int) -> None:
        """A UserError names the first of n sentences where the rules make no sense."""
        if len(self.max_new_tokens) != n or len(self.prefix) != n:
            raise UserError(
                f"{n} sentences, but {len(self.max_new_tokens)} max_new_tokens and {len(self.prefix)} prefixes: "
                "one each is wanted"
            )
        if self.min_new_tokens < 0:
            raise UserError(f"min_new_tokens is {self.min_new_tokens}, wanted 0 or more")
        for i, (limit, given) in enumerate(zip(self.max_new_tokens, self.prefix, strict=True)):
            if limit < 1:
                raise UserError(f"max_new_tokens of sentence {i} is {limit}, wanted at least 1")
            if len(given) > limit:
                raise UserError(
                    f"the prefix of sentence {i} has {len(given)} tokens, more than max_new_tokens ({limit})"
                )
            if self.eos_id in given:
                raise UserError(
                    f"the prefix of sentence {i} contains the end-of-sentence token {self.eos_id}"
                )

    def select(self, sentences: Iterable[int]) -> Rules:
        """The rules of some sentences."""
        kept = list(sentences)
        limits, prefix = [self.max_new_tokens[i] for i in kept], [self.prefix[i] for i in kept]
        return self._replace(max_new_tokens=limits, prefix=prefix)


class State:
    """The rows being decoded: equally many for each sentence, one at first, all with ``step`` tokens so far."""

    def __init__(
        self, model: Decoder, source: Tensor, source_pos: Tensor | None, rules: Rules, cache: Choice | None
    ) -> None:
        assert not model.training, "decoding wants model.eval(): dropout would make the outputs random"
        self.model, self.rules, self.step = model, rules, 0
        self.memory = [kept.kept() for kept in model.encode(source, source_pos)]
        self.device = source.device
        self.cache = make_cache(cache, model.cache_shape, len(source), max(rules.max_new_tokens))

    def extend(self, tokens: Ints, k: int) -> tuple[Floats, Ints]:
        """The newest token of each row (N,) in; the k likeliest next ones out, log-probabilities and ids (N, k)."""
        device, rules = self.device, self.rules
        pos = torch.full((len(tokens), 1), self.step, device=device)
        self.cache.begin(range(len(tokens)), pos)
        fed = torch.from_numpy(tokens).to(device)[:, None]
        logits = self.model.decode(fed, pos, self.cache, self.memory)[:, -1]
        banned = rules.eos_id if self.step < rules.min_new_tokens else None
        forced = forced_tokens(rules.prefix, self.step, len(tokens) // len(rules.prefix), device)
        values, ids = likeliest(logits, k, banned, forced)
        self.step += 1
        return to_host(values), ids.cpu().numpy()

    def select(self, sentences: Ints, rows: Ints) -> None:
        """Keep some sentences; row i goes on from what row ``rows[i]`` was."""
        if len(sentences) < len(self.rules.prefix):
            index = torch.from_numpy(sentences).to(self.device)
            self.memory = [kept.select(index) for kept in self.memory]
            self.rules = self.rules.select(sentences.tolist())
        self.cache.select(rows.tolist())


def normalised(log_prob: float, length: int, length_penalty: float) -> float:
    """The score: log P(y | x) / |y| ** length_penalty; |y| counts the end of the sentence (Wu et al., 2016, without their 5)."""
    score: float = log_prob / length**length_penalty
    return score


def to_host(log_probs: Tensor) -> Floats:
    """Log-probabilities in double precision, where they are summed; NaN is a UserError."""
    host: Floats = log_probs.double().cpu().numpy()
    if np.isnan(host).any():
        raise UserError(
            "the model's output is not a number (NaN): its weights are damaged or overflow in this precision"
        )
    return host
