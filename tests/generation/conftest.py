"""Toy translators whose every probability is known, and searches written as plainly as possible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyhead.nn.cache import Cache, CacheShape
from polyhead.nn.kv import KV

EOS, BOS, V = 0, 4, 4  # three words, the end of the sentence; the begin is never an output


class Tape:
    """A translator that remembers its outputs only through the cache it is given, as keys in two layers."""

    training, vocab_size = False, 1000

    def __init__(self) -> None:
        self.read: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # source and prefix of each number

    cache_shape = CacheShape(2, 1, 1, 1, torch.float32, torch.device("cpu"))

    def encode(self, source: Tensor, source_pos: Tensor | None = None) -> list[KV]:
        pos = torch.arange(source.size(1)).expand_as(source) if source_pos is None else source_pos
        k = source[:, None, :, None].float()
        return [KV(k, k, pos[:, None])] * 2

    def decode(self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: Sequence[KV]) -> Tensor:
        return self.head(self.decode_features(tokens, pos, cache, memory)[:, -1])[:, None]

    def decode_features(
        self, tokens: Tensor, pos: Tensor, cache: Cache | None, memory: Sequence[KV]
    ) -> Tensor:
        """A number (N, T) for each token, by which ``head`` knows its source and prefix."""
        assert cache is not None
        whole: list[list[list[tuple[int, ...]]]] = []
        for layer in cache.layers:
            kv = layer.update(
                KV(tokens[:, None, :, None].float(), pos[:, None, :, None].float(), pos[:, None])
            )
            assert kv.pos is not None
            whole.append([])
            for held, keys, values, new in zip(
                kv.pos[:, 0], kv.k[:, 0, :, 0], kv.v[:, 0, :, 0], pos.tolist(), strict=True
            ):
                order = held.argsort()[int((held < 0).sum()) :]
                assert values[order].tolist() == list(range(max(new) + 1))
                text = tuple(keys[order].long().tolist())
                whole[-1].append([text[: last + 1] for last in new])
        assert whole[0] == whole[1]
        beams = len(tokens) // len(memory[0].k)
        assert beams * len(memory[0].k) == len(tokens)
        sources = [
            tuple(ids[where >= 0].long().tolist())
            for ids, where in zip(memory[0].k[:, 0, :, 0], memory[0].pos[:, 0], strict=True)
        ]
        first = len(self.read)
        self.read += [(sources[i // beams], prefix) for i, row in enumerate(whole[0]) for prefix in row]
        return torch.arange(first, len(self.read)).view_as(tokens)

    def head(self, features: Tensor) -> Tensor:
        sources, prefixes = zip(*(self.read[i] for i in features.tolist()), strict=True)
        return self.say([*sources], [*prefixes])

    def say(self, sources: list[tuple[int, ...]], prefixes: list[tuple[int, ...]]) -> Tensor:
        """Logits (N, V) after whole prefixes, begin included."""
        raise NotImplementedError


class Table(Tape):
    """Logits are random numbers drawn anew for each source and prefix."""

    def __init__(self, seed: int, spread: float = 1.5, eos: float = 0.0) -> None:
        super().__init__()
        self.seed, self.spread, self.eos = seed, spread, eos

    def logits(self, source: Sequence[int], prefix: Sequence[int]) -> np.ndarray:
        drawn = np.random.default_rng([self.seed, len(source), *source, *prefix]).normal(0, self.spread, V)
        drawn[EOS] += self.eos
        return drawn.astype(np.float32)

    def say(self, sources: list[tuple[int, ...]], prefixes: list[tuple[int, ...]]) -> Tensor:
        return torch.tensor(np.stack([self.logits(s, p[1:]) for s, p in zip(sources, prefixes, strict=True)]))

    def log_probs(self, source: Sequence[int], prefix: Sequence[int]) -> np.ndarray:
        drawn = self.logits(source, prefix).astype(np.float64)
        return drawn - math.log(np.exp(drawn).sum())


@dataclass(frozen=True)
class Found:
    tokens: tuple[int, ...]
    score: float
    log_prob: float


def exhaustive(
    model: Table,
    source: Sequence[int],
    limit: int,
    alpha: float,
    prefix: Sequence[int] = (),
    min_new: int = 0,
) -> list[Found]:
    """Every output of at most ``limit`` tokens (end included; whole if it has none), best first."""
    found = []
    words = [w for w in range(V) if w != EOS]
    for length in range(limit + 1):
        for y in itertools.product(words, repeat=length):
            if y[: len(prefix)] != tuple(prefix)[:length] or length < len(prefix):
                continue
            log_prob = sum(model.log_probs(source, y[:i])[w] for i, w in enumerate(y))
            if length < limit:
                if length < min_new:
                    continue
                log_prob += model.log_probs(source, y)[EOS]
            found.append(Found(y, log_prob / min(length + 1, limit) ** alpha, log_prob))
    return sorted(found, key=lambda f: -f.score)


def plain_beam(
    model: Table,
    source: Sequence[int],
    limit: int,
    alpha: float,
    beam: int,
    early: Any,
    prefix: Sequence[int] = (),
    min_new: int = 0,
) -> list[Found]:
    """Beam search of one sentence over lists, computing every prefix anew."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[Found] = []
    for length in range(1, limit + 1):
        extensions = []
        for log_prob, y in live:
            table = model.log_probs(source, y)
            for word in range(V):
                if len(y) < len(prefix) and word != prefix[len(y)]:
                    continue
                if word == EOS and len(y) < min_new:
                    continue
                extensions.append((log_prob + table[word], (*y, word)))
        extensions.sort(key=lambda e: -e[0])
        live = []
        for rank, (log_prob, y) in enumerate(extensions[: 2 * beam]):
            if y[-1] == EOS or length == limit:
                if rank < beam:
                    words = y[:-1] if y[-1] == EOS else y
                    done.append(Found(words, log_prob / length**alpha, log_prob))
            elif len(live) < beam:
                live.append((log_prob, y))
        done = sorted(done, key=lambda f: -f.score)[:beam]
        if not live:
            break
        if len(done) == beam:
            if early is True:
                break
            reach = limit if early == "never" and alpha > 0 else length
            if live[0][0] / reach**alpha <= done[-1].score:
                break
    return done


@pytest.fixture
def table() -> type[Table]:
    return Table


@pytest.fixture
def tape() -> type[Tape]:
    return Tape


@pytest.fixture
def every() -> Any:
    return exhaustive


@pytest.fixture
def plain() -> Any:
    return plain_beam
