"""Divergence of a model that decodes from a cache from the same model without one, and claims about it.

The cost of the cache is measured too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from polyhead import Choice
from polyhead.cache.factory import make_cache
from polyhead.cache.policies import EXACT_FAMILIES, H2O_SHARE, Policy
from polyhead.nn.cache import Cache, CacheMemory
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab.models import EvalRows
from polyhead_lab.registry import Claim
from polyhead_lab.statistics import (
    format_mean,
    mean_interval,
    pick_clock,
    time_ratios,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
    verdict_within,
)

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


KL_ROUNDING = 1e-7  # nats per token
_NEGLIGIBLE_INCREASE = 0.01  # relative increase of perplexity that counts as nearly none
_LESS = f"less than {100 * _NEGLIGIBLE_INCREASE:.0f} % more"
_LOSSY_FAMILIES = ("window+sink", "window", "h2o", "subgen", "low rank")

Divergences = Mapping[str, Divergence]


def make_cache_claims(
    policies: Sequence[Policy], divergences: Divergences, baseline: Divergence
) -> list[Claim]:
    """Claims about the caches that this model supports."""
    names = set(divergences)
    claims = [
        lossless_claim(
            divergences, [policy.name for policy in policies if policy.family in (*EXACT_FAMILIES, "state")]
        )
    ]
    if "8 bits" in names:
        claims += quantized_claims(policies, divergences, baseline)
    if "h2o 1/4" in names:
        claims += heavy_hitter_claims(divergences, baseline)
    if {"window 1/4", "window+sink 1/4"} <= names:
        claims += window_claims(divergences, baseline)
    if "subgen 1/4" in names:
        claims.append(cluster_claim(divergences))
    if "low rank 3/5" in names:
        claims.append(low_rank_claim(divergences, baseline))
    if "h2o 1/8" in names and "static" in names:
        claims += speed_claims(divergences)
    return claims


def lossless_claim(divergences: Divergences, names: Sequence[str]) -> Claim:
    """Claim about caches that keep everything."""
    worst = max(max(divergences[name].kl) for name in names)
    same = min(min(divergences[name].top1_agreement) for name in names)
    return Claim(
        "A lossless cache gives the output of the model without a cache, whatever its layout.",
        "Kwon et al., 2023, section 4, for pages; by construction for the others",
        f"{', '.join(names)}: the divergence of a text is {worst:.1g} nats per token at most (rounding: up "
        f"to {KL_ROUNDING:.0e}), the most likely token "
        f"is the same in {100 * same:.2f} % of positions at least.",
        worst <= KL_ROUNDING,
    )


def quantized_claims(
    policies: Sequence[Policy], divergences: Divergences, baseline: Divergence
) -> list[Claim]:
    """Claims about quantized caches."""
    eight, four = (loss_changes(divergences[name], baseline) for name in ("8 bits", "4 bits"))
    tenth = math.log1p(0.1 / baseline.perplexity)
    size = divergences["4 bits"].memory
    assert size is not None
    rivals = {
        p.name: divergences[p.name]
        for p in policies
        if p.family in _LOSSY_FAMILIES and peak_bytes(divergences[p.name]) >= size.peak_bytes
    }
    best = min(rivals, key=lambda name: rivals[name].mean_kl, default=None)
    return [
        Claim(
            "Eight bits per number lose nothing measurable.",
            "assumed by Liu et al., 2024 (KIVI), and Hooper et al., 2024 (KVQuant), who use 2 and 3 bits",
            f"Perplexity {format_change(eight)}, divergence {divergences['8 bits'].mean_kl:.2g} nats per "
            "token (nothing: within 0.1 % of the perplexity).",
            verdict_within(eight, 0.0, 0.001),
        ),
        Claim(
            "Four bits cost less than 0.1 of perplexity.",
            "Hooper et al., 2024 (KVQuant), abstract: at 3 bits, with unevenly spaced numbers",
            f"{describe_perplexity(divergences['4 bits'], baseline)}.",
            verdict_below(four, tenth),
        ),
        Claim(
            "At equal bytes, fewer bits are better than fewer tokens or directions.",
            "not claimed there; tested here",
            f"4 bits: {divergences['4 bits'].mean_kl:.2g} nats per token; "
            + ("no other lossy cache has as many bytes." if best is None else "the best cache with as many "
                f"bytes, {best}: {rivals[best].mean_kl:.2g}."),
            None if best is None else verdict_less(divergences["4 bits"].kl, rivals[best].kl),
        ),
    ]  # fmt: skip


def heavy_hitter_claims(divergences: Divergences, baseline: Divergence) -> list[Claim]:
    """Claims about the heavy hitters of H2O."""
    fifth, shares = (
        f"h2o {H2O_SHARE}",
        [share for share in ("1/2", "1/4", "1/8") if f"window {share}" in divergences],
    )
    comparison = "; ".join(
        f"{share}: {divergences[f'h2o {share}'].mean_kl:.2g} against "
        f"{divergences[f'window {share}'].mean_kl:.2g}"
        for share in shares
    )
    claims = [
        Claim(
            "A fifth of the tokens, heavy hitters and newest, keeps nearly all quality.",
            "Zhang et al., 2023 (H2O), abstract and section 5",
            f"{describe_perplexity(divergences[fifth], baseline)} (nearly all: {_LESS}).",
            keeps_perplexity(divergences[fifth], baseline),
        )
    ]
    if shares:
        claims.append(
            Claim(
                "Heavy hitters are better than the same number of newest tokens.",
                "Zhang et al., 2023 (H2O), section 5, compared with a local cache",
                f"Divergence, nats per token, h2o against window at the same share, {comparison}.",
                verdict_all(
                    verdict_less(divergences[f"h2o {share}"].kl, divergences[f"window {share}"].kl)
                    for share in shares
                ),
            )
        )
    return claims


def window_claims(divergences: Divergences, baseline: Divergence) -> list[Claim]:
    """Claims about sliding windows, with and without attention sinks."""
    plain, sink, quarter = "window 1/4", "window+sink 1/4", " at a quarter of the tokens"
    return [
        Claim(
            "A plain window breaks when the first tokens are evicted.",
            "Xiao et al., 2023 (StreamingLLM), section 3.1 and figure 3",
            f"{describe_perplexity(divergences[plain], baseline, quarter)} (fails: twice as high).",
            verdict_above(loss_changes(divergences[plain], baseline), math.log(2)),
        ),
        Claim(
            "A window with a few first tokens is better than the same number of newest tokens.",
            "Xiao et al., 2023 (StreamingLLM), section 3.1 and table 1",
            f"Divergence at a quarter of the tokens {divergences[sink].mean_kl:.2g} nats per token with "
            f"first tokens, {divergences[plain].mean_kl:.2g} without.",
            verdict_less(divergences[sink].kl, divergences[plain].kl),
        ),
        Claim(
            "With first tokens the window keeps the perplexity.",
            "Xiao et al., 2023 (StreamingLLM), section 4.1, on texts far longer than those in training",
            f"{describe_perplexity(divergences[sink], baseline, quarter)} (preserves: {_LESS}).",
            keeps_perplexity(divergences[sink], baseline),
        ),
    ]


def cluster_claim(divergences: Divergences) -> Claim:
    """Claim about the key clusters of SubGen."""
    shares = ("1/2", "1/4", "1/8")
    rivals = [name for name in ("h2o", "window+sink") if f"{name} 1/4" in divergences]
    comparison = "; ".join(
        f"{share}: {divergences[f'subgen {share}'].mean_kl:.2g} against "
        + " and ".join(f"{divergences[f'{name} {share}'].mean_kl:.2g}" for name in rivals)
        for share in shares
    )
    return Claim(
        "Clusters of keys lose less than evicting tokens, at the same budget.",
        "Zandieh et al., 2024 (SubGen), section 4, for retrieval from long texts",
        f"Divergence, nats per token, subgen against {' and '.join(rivals)}, {comparison}.",
        verdict_all(
            verdict_less(divergences[f"subgen {share}"].kl, divergences[f"{name} {share}"].kl)
            for share in shares
            for name in rivals
        ),
    )


def low_rank_claim(divergences: Divergences, baseline: Divergence) -> Claim:
    """Claim about the low-rank keys and values of Eigen Attention."""
    name = "low rank 3/5"
    return Claim(
        "Two fifths of the width of keys and values can be removed at hardly any cost.",
        "Saxena et al., 2024 (Eigen Attention), abstract: up to 40 % of the cache",
        f"{describe_perplexity(divergences[name], baseline)} (hardly any: {_LESS}).",
        keeps_perplexity(divergences[name], baseline),
    )


def speed_claims(divergences: Divergences) -> list[Claim]:
    """Claims about the time of a decoding step."""
    ratios = {
        name: speed_ratios(divergences, name)
        for name in ("h2o 1/8", "window+sink 1/8")
        if name in divergences
    }
    claims = [
        Claim(
            "A cache with few tokens has faster steps.",
            "Zhang et al., 2023 (H2O), section 5.2, with batches that fill a GPU; here all have "
            "the same batches and lengths",
            "Against static: "
            + ", ".join(f"{name} {format_mean(times)} times as fast" for name, times in ratios.items())
            + ".",
            verdict_all(verdict_above(times, 1.0) for times in ratios.values()),
        )
    ]
    if "4 bits" in divergences:
        times = speed_ratios(divergences, "4 bits")
        claims.append(
            Claim(
                "A cache of few bits makes decoding faster.",
                "Liu et al., 2024 (KIVI), abstract, with larger batches; here all have the same batches",
                f"4 bits: {format_mean(times)} times as fast as static.",
                verdict_above(times, 1.0),
            )
        )
    return claims


def speed_ratios(divergences: Divergences, name: str) -> list[float]:
    """Speed relative to the static cache, round by round."""
    return time_ratios(divergences["static"].seconds, divergences[name].seconds)


def loss_changes(divergence: Divergence, baseline: Divergence) -> list[float]:
    """Increase of the loss of each text over no cache, in nats per token.

    Texts are weighted by their length, as in a perplexity.
    """
    mean_len = sum(baseline.token_counts) / len(baseline.token_counts)
    return [
        (a - b) * n / mean_len
        for a, b, n in zip(divergence.nll, baseline.nll, baseline.token_counts, strict=True)
    ]


def keeps_perplexity(divergence: Divergence, baseline: Divergence) -> bool | None:
    """Whether the perplexity increases by less than ``_NEGLIGIBLE_INCREASE``."""
    return verdict_below(loss_changes(divergence, baseline), math.log1p(_NEGLIGIBLE_INCREASE))


def describe_perplexity(divergence: Divergence, baseline: Divergence, place: str = "") -> str:
    """The perplexities of a cache and of no cache, and the change."""
    change = format_change(loss_changes(divergence, baseline))
    return f"Perplexity {divergence.perplexity:.4g} against {baseline.perplexity:.4g}{place}: {change}"


def format_change(changes: Sequence[float]) -> str:
    """Format a change in nats per token as a change of the perplexity."""
    interval = mean_interval(changes)
    if abs(interval.mean) + interval.half_width < KL_ROUNDING:
        return "none"
    percent, half = 100 * math.expm1(interval.mean), 100 * interval.half_width
    return f"{percent:+.0f} ± {half:.2g} %" if abs(percent) >= 99.5 else f"{percent:+.2g} ± {half:.2g} %"


def peak_bytes(divergence: Divergence) -> int:
    """Peak bytes of the cache."""
    assert divergence.memory is not None
    return divergence.memory.peak_bytes
