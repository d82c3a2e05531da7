"""How far a model that decodes from a cache departs from the same model without one, and what the cache costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyhead.cache.base import Cache, Memory
from polyhead.cache.make import make_cache
from polyhead.lab.clock import quiet_clock
from polyhead.lab.policies import Policy
from polyhead.lab.rows import Rows
from polyhead.nn.loss import IGNORED
from polyhead.registry import Choice

ROWS = 16  # texts that are decoded together
STRETCH = 16  # steps that make one round of the clock


@dataclass
class Found:
    """What one cache did over all texts. Lists have an entry a text, but ``seconds`` one for each round of the clock."""

    kl: list[float] = field(default_factory=list)  # nats a token, mean over the text
    nll: list[float] = field(default_factory=list)  # nats a token that was to be said
    # share of tokens where the likeliest one is that of no cache
    same: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    # mean KL of the texts that reach there, (T,)
    by_place: Tensor = field(default_factory=lambda: torch.zeros(0))
    memory: Memory | None = None  # of the batch that held most
    tokens: list[int] = field(default_factory=list)  # of each text

    @property
    def perplexity(self) -> float:
        """Perplexity of a token, over all texts."""
        return math.exp(sum(nll * n for nll, n in zip(self.nll, self.tokens, strict=True)) / sum(self.tokens))

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return sum(self.tokens) / sum(self.seconds)


@torch.inference_mode()
def divergence(model: Any, chosen: Sequence[Policy], rows: Rows) -> tuple[dict[str, Found], Found]:
    """Step every cache through the same texts, token by token and in turns; the second is the model without a cache.

    The reference of the KL divergence is the whole forward pass: KL(p whole ‖ p cached), nats.
    """
    found = {
        policy.name: Found(by_place=torch.zeros(rows.read.size(1), dtype=torch.double)) for policy in chosen
    }
    plain, reach = Found(), (rows.wanted != IGNORED).sum(0)
    for batch in rows.batches(ROWS):
        _lead(model, chosen, batch, found, plain)
    for one in found.values():
        one.by_place /= reach.clamp(min=1)
    return found, plain


def _lead(model: Any, chosen: Sequence[Policy], batch: Rows, found: dict[str, Found], plain: Found) -> None:
    """One batch of texts through every cache."""
    (n, length), there = batch.read.shape, batch.wanted != IGNORED
    counts = there.sum(1)
    pos = batch.pos if bool((batch.pos < 0).any()) else None
    if batch.source is None:
        memory, whole = None, model.features(batch.read, pos)
    else:
        memory = [kept.kept() for kept in model.encode(batch.source, batch.source_pos)]
        whole = model.features(batch.source, batch.read, batch.source_pos, pos)
    caches: dict[str, Cache] = {
        policy.name: make_cache(policy.choice, model.cache_shape, n, length) for policy in chosen
    }
    # KL, negative log-likelihood, same
    sums = {name: torch.zeros(3, n, dtype=torch.double) for name in caches}
    own, order = torch.zeros(n, dtype=torch.double), list(caches)
    taken, clock = dict.fromkeys(caches, 0.0), quiet_clock()
    for t in range(length):
        here = there[:, t]
        wanted = batch.wanted[:, t].clamp(min=0)[:, None]
        p = model.head(whole[:, t]).double().log_softmax(-1)
        own -= p.gather(1, wanted)[:, 0] * here
        for name in order[t % len(order) :] + order[: t % len(order)]:
            start = clock()
            caches[name].begin(range(n), batch.pos[:, t : t + 1])
            logits = model.decode(batch.read[:, t : t + 1], batch.pos[:, t : t + 1], caches[name], memory)
            taken[name] += clock() - start
            q = logits[:, 0].double().log_softmax(-1)
            kl = kl_divergence(p, q)
            sums[name] += (
                torch.stack([kl, -q.gather(1, wanted)[:, 0], (p.argmax(-1) == q.argmax(-1)).double()]) * here
            )
            found[name].by_place[t] += (kl * here).sum()
        if t % STRETCH == STRETCH - 1 or t == length - 1:
            for name in caches:
                found[name].seconds.append(taken[name])
                taken[name] = 0.0
    plain.nll += (own / counts).tolist()
    plain.tokens += counts.tolist()
    for name, cache in caches.items():
        one = found[name]
        for values, total in zip((one.kl, one.nll, one.same), sums[name], strict=True):
            values += (total / counts).tolist()
        one.tokens += counts.tolist()
        held = cache.memory()
        one.memory = held if one.memory is None or held.peak > one.memory.peak else one.memory


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) of log-probabilities (N, V) -> (N,): Σ p (log p - log q), nats; rounding below 0 is 0."""
    return torch.where(p.isinf(), 0.0, p.exp() * (p - q)).sum(-1).clamp(min=0)


@torch.inference_mode()
def goes_on(model: Any, choice: Choice, prompts: Tensor, new: int) -> Tensor:
    """The likeliest tokens after prompts (N, P), each fed back: (N, new). The prompt is read in one step."""
    n, length = prompts.shape
    cache = make_cache(choice, model.cache_shape, n, length + new)
    pos, fed, said = torch.arange(length).expand(n, -1), prompts, list[Tensor]()
    for step in range(new):
        cache.begin(range(n), pos)
        said.append(model.decode(fed, pos, cache, None)[:, -1].argmax(-1))
        fed, pos = said[-1][:, None], torch.full((n, 1), length + step)
    return torch.stack(said, 1)


def equal_tokens(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> list[float]:
    """The share of places with the same token, of the longer of two outputs; of empty ones all."""
    return [
        sum(x == y for x, y in zip(a, b, strict=False)) / max(1, len(a), len(b)) if a or b else 1.0
        for a, b in zip(one, other, strict=True)
    ]
