"""Divergence of a model that decodes from a cache from the same model without one, and the cache's cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.cache.policies import Policy
from polyhead.nn.cache import Cache, CacheMemory
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab.models import EvalRows
from polyhead_lab.statistics import pick_clock

BATCH_ROWS = 16  # texts that are decoded in one batch
_STEPS_PER_ROUND = 16  # steps of one timing round


@dataclass
class Divergence:
    """Measurements of one cache over all texts.

    Lists have one entry per text, except ``seconds``, which has one per timing round.
    """

    kl: list[float] = field(default_factory=list)  # nats per token, mean over the text
    nll: list[float] = field(default_factory=list)  # nats per label token
    # share of tokens with the same most likely token as without a cache
    top1_agreement: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    # mean KL over the texts that are long enough, (T,)
    kl_by_position: Tensor = field(default_factory=lambda: torch.zeros(0))
    memory: CacheMemory | None = None  # of the batch with the highest peak
    token_counts: list[int] = field(default_factory=list)  # labels of each text

    @property
    def perplexity(self) -> float:
        """Perplexity per token, over all texts."""
        return math.exp(
            sum(nll * n for nll, n in zip(self.nll, self.token_counts, strict=True)) / sum(self.token_counts)
        )

    @property
    def mean_kl(self) -> float:
        """Mean divergence of the texts, nats per token."""
        return fmean(self.kl)

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens per second."""
        return sum(self.token_counts) / sum(self.seconds)


@torch.inference_mode()
def measure_divergence(
    model: Any, policies: Sequence[Policy], rows: EvalRows
) -> tuple[dict[str, Divergence], Divergence]:
    """Decode the same texts with every cache, token by token and interleaved.

    The second result is the model without a cache. It is the reference of the KL divergence, computed in one
    full forward pass: KL(p full ‖ p cached), in nats.
    """
    divergences = {
        policy.name: Divergence(kl_by_position=torch.zeros(rows.input_ids.size(1), dtype=torch.double))
        for policy in policies
    }
    baseline, n_texts = Divergence(), (rows.labels != IGNORE_INDEX).sum(0)
    for batch in rows.batches(BATCH_ROWS):
        _step_caches(model, policies, batch, divergences, baseline)
    for divergence in divergences.values():
        divergence.kl_by_position /= n_texts.clamp(min=1)
    return divergences, baseline


def _step_caches(
    model: Any,
    policies: Sequence[Policy],
    batch: EvalRows,
    divergences: dict[str, Divergence],
    baseline: Divergence,
) -> None:
    """Decode one batch of texts with every cache."""
    (n, length), has_label = batch.input_ids.shape, batch.labels != IGNORE_INDEX
    counts = has_label.sum(1)
    pos = batch.pos if bool((batch.pos < 0).any()) else None
    if batch.source is None:
        memory, features = None, model.features(batch.input_ids, pos)
    else:
        memory = [layer.contiguous_for_decoding() for layer in model.encode(batch.source, batch.source_pos)]
        features = model.features(batch.source, batch.input_ids, batch.source_pos, pos)
    caches: dict[str, Cache] = {
        policy.name: make_cache(policy.choice, model.cache_shape, n, length) for policy in policies
    }
    # KL, negative log-likelihood, equal most likely token
    sums = {name: torch.zeros(3, n, dtype=torch.double) for name in caches}
    baseline_nll, order = torch.zeros(n, dtype=torch.double), list(caches)
    seconds, clock = dict.fromkeys(caches, 0.0), pick_clock()
    for t in range(length):
        is_counted = has_label[:, t]
        targets = batch.labels[:, t].clamp(min=0)[:, None]
        p = model.head(features[:, t]).double().log_softmax(-1)
        baseline_nll -= p.gather(1, targets)[:, 0] * is_counted
        for name in order[t % len(order) :] + order[: t % len(order)]:
            start = clock()
            caches[name].prepare_step(range(n), batch.pos[:, t : t + 1])
            logits = model.decode(
                batch.input_ids[:, t : t + 1], batch.pos[:, t : t + 1], caches[name], memory
            )
            seconds[name] += clock() - start
            q = logits[:, 0].double().log_softmax(-1)
            kl = kl_divergence(p, q)
            sums[name] += (
                torch.stack([kl, -q.gather(1, targets)[:, 0], (p.argmax(-1) == q.argmax(-1)).double()])
                * is_counted
            )
            divergences[name].kl_by_position[t] += (kl * is_counted).sum()
        if t % _STEPS_PER_ROUND == _STEPS_PER_ROUND - 1 or t == length - 1:
            for name in caches:
                divergences[name].seconds.append(seconds[name])
                seconds[name] = 0.0
    baseline.nll += (baseline_nll / counts).tolist()
    baseline.token_counts += counts.tolist()
    for name, cache in caches.items():
        divergence = divergences[name]
        for values, total in zip(
            (divergence.kl, divergence.nll, divergence.top1_agreement), sums[name], strict=True
        ):
            values += (total / counts).tolist()
        divergence.token_counts += counts.tolist()
        usage = cache.memory_usage()
        divergence.memory = (
            usage
            if divergence.memory is None or usage.peak_bytes > divergence.memory.peak_bytes
            else divergence.memory
        )


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) of log-probabilities (N, V) -> (N,): Σ p (log p - log q), nats; rounding below 0 is 0."""
    return torch.where(p.isinf(), 0.0, p.exp() * (p - q)).sum(-1).clamp(min=0)


@torch.inference_mode()
def decode_greedy(model: Any, choice: Choice, prompts: Tensor, max_new_tokens: int) -> Tensor:
    """Greedy continuation of prompts (N, P): (N, ``max_new_tokens``). The prompt is prefilled in one step."""
    n, length = prompts.shape
    cache = make_cache(choice, model.cache_shape, n, length + max_new_tokens)
    pos, inputs, tokens = torch.arange(length).expand(n, -1), prompts, list[Tensor]()
    for step in range(max_new_tokens):
        cache.prepare_step(range(n), pos)
        tokens.append(model.decode(inputs, pos, cache, None)[:, -1].argmax(-1))
        inputs, pos = tokens[-1][:, None], torch.full((n, 1), length + step)
    return torch.stack(tokens, 1)


def token_agreement(outputs: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> list[float]:
    """Share of positions with equal tokens, relative to the longer of two outputs; 1 if both are empty."""
    return [
        sum(x == y for x, y in zip(a, b, strict=False)) / max(1, len(a), len(b)) if a or b else 1.0
        for a, b in zip(outputs, references, strict=True)
    ]
