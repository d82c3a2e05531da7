"""Attention whose cost is linear in the length instead of quadratic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from polyhead import Choice, build
from polyhead.config.model import AttentionShape
from polyhead.core.registry import ATTENTION
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead_lab.caches import Stepper, decode_stepwise
from polyhead_lab.registry import (
    EXPERIMENTS,
    SEEDS_NOTE,
    TOY,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ResultTable,
)
from polyhead_lab.short_training import (
    collect_losses,
    make_copy_task,
    make_recall_task,
    make_small_config,
    pick_model_size,
    train_designs,
)
from polyhead_lab.statistics import (
    format_mean,
    time_interleaved,
    time_ratios,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
    verdict_within,
)

KATHAROPOULOS = "Katharopoulos et al., 2020"
_KINDS = ("softmax", "linear")
_FILL_CHUNK = 1024  # tokens fed at once while a cache is filled

TimesByKind = dict[str, list[tuple[float, list[float]]]]
"""Kind of attention -> lengths, each with the milliseconds of every round."""


@EXPERIMENTS.register("linear")
def measure_linear_attention(lab: LabContext) -> ExperimentResult:
    """Linear against softmax attention: crossover in N, time and memory of a generated token, recall."""
    forward = time_layers(
        lab, lab.pick_size([64, 128, 256, 512, 1024, 2048, 4096, 8192], [16, 32]), with_backward=False
    )
    training = time_layers(
        lab, lab.pick_size([64, 128, 256, 512, 1024, 2048, 4096], [16, 32]), with_backward=True
    )
    lab.info("a layer measured; now generation after long texts")
    contexts = lab.pick_size([1024, 4096, 16384, 65536], [32, 64])
    step_times, cache_bytes = time_generation(lab, contexts)
    problem = make_copy_task(lab.pick_size(200, 8), 64)
    model = build(make_small_config(problem, attention=Choice("linear")), lab.seed).eval()
    batch = problem.batch(lab.seed, 0, 4)
    with torch.inference_mode():
        logits: Tensor = model(batch.source, batch.target)
    stepwise = decode_stepwise(model, batch.source, batch.target)
    difference = float((logits - stepwise).abs().max())
    lab.info("generation measured; now recall")
    problem = make_recall_task()
    designs = {kind: make_small_config(problem, attention=Choice(kind)) for kind in _KINDS}
    loss = collect_losses(train_designs(lab, problem, designs, steps=lab.pick_size(250, 4)))
    first, last = contexts[0], contexts[-1]
    flat, grown = (
        time_ratios(step_times[kind][last], step_times[kind][first]) for kind in ("linear", "softmax")
    )
    slope = {kind: fit_exponents(forward[kind][-3:]) for kind in _KINDS}

    claims = [
        Claim(
            "Linear attention costs O(N), softmax attention O(N^2).",
            f"{KATHAROPOULOS}, section 3.2",
            f"Exponent of N over the longest texts, up to {forward['linear'][-1][0]:,.0f} tokens: linear "
            f"{format_mean(slope['linear'])}, softmax {format_mean(slope['softmax'])} (target: at most 1.2, "
            "at least 1.6).",
            verdict_all([verdict_below(slope["linear"], 1.2), verdict_above(slope["softmax"], 1.6)]),
        ),
        Claim(
            "Beyond some length linear attention is faster in the forward pass.",
            f"{KATHAROPOULOS}, figure 1",
            describe_crossover(forward),
            verdict_above(slowdown_of_softmax(forward), 1.0),
        ),
        Claim(
            "Beyond some length it is also faster in training.",
            f"{KATHAROPOULOS}, figure 1",
            describe_crossover(training),
            verdict_above(slowdown_of_softmax(training), 1.0),
        ),
        Claim(
            "The time per generated token is constant.",
            f"{KATHAROPOULOS}, section 3.4",
            f"After {last:,} tokens linear takes {format_mean(flat)} times as long as after {first:,} "
            f"(constant: within 25 %); softmax {format_mean(grown)} times.",
            verdict_within(flat, 1.0, 0.25),
        ),
        Claim(
            "The memory of decoding is constant.",
            f"{KATHAROPOULOS}, section 3.4",
            f"A row's state: {cache_bytes['linear'][first]:,} bytes after {first:,} tokens and "
            f"{cache_bytes['linear'][last]:,} after "
            f"{last:,}; softmax: {cache_bytes['softmax'][first]:,} and {cache_bytes['softmax'][last]:,}.",
            cache_bytes["linear"][first] == cache_bytes["linear"][last],
        ),
        Claim(
            "The parallel and the recurrent form compute the same function.",
            f"{KATHAROPOULOS}, sections 3.3 and 3.4",
            f"Largest difference of a logit between parallel and token by token: {difference:.2g} "
            "(rounding: up to 1e-4).",
            difference < 1e-4,
        ),
        Claim(
            "Linear attention reaches the quality of softmax.",
            f"{KATHAROPOULOS}, section 4, for images and speech; contested for recall by Schlag et al., 2021",
            f"Loss on a recall task: linear {format_mean(loss['linear'])}, softmax "
            f"{format_mean(loss['softmax'])} (reached: at most 0.1 nats worse).",
            verdict_less(loss["linear"], loss["softmax"], -0.1), TOY,
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        LinePlot("One causal layer, forward", "tokens N",
             {kind: find_medians(forward[kind]) for kind in _KINDS},
             "Milliseconds of one row, both axes logarithmic: a straight line is a power of N.", log=True),
        LinePlot("One causal layer, forward and backward", "tokens N",
             {kind: find_medians(training[kind]) for kind in _KINDS}, log=True),
        LinePlot("Time of a generated token", "context tokens",
             {kind: [(n, 1e3 * sorted(t)[len(t) // 2]) for n,
                 t in step_times[kind].items()] for kind in _KINDS},
             "Milliseconds of a decoder of 2 layers.", log=True),
        LinePlot("Memory of a row", "context tokens",
             {kind: [(n, b / 1024) for n, b in cache_bytes[kind].items()] for kind in _KINDS},
             "KiB of the cache, both layers.", log=True),
        DotPlot("Held-out loss on a recall task", "nats per token", loss, SEEDS_NOTE),
        ResultTable(
            "Generation",
            ("context tokens", *(f"ms per token, {kind}" for kind in _KINDS),
                *(f"bytes, {kind}" for kind in _KINDS)),
            [(n, *(format_mean([1e3 * t for t in step_times[kind][n]]) for kind in _KINDS),
                *(cache_bytes[kind][n] for kind in _KINDS))
             for n in contexts],
        ),
        ResultTable(
            "One layer, ms",
            ("tokens N", *(f"{kind}, forward" for kind in _KINDS), *(f"{kind}, training" for kind in _KINDS)),
            [(int(n), *(format_mean(dict(forward[kind])[n]) for kind in _KINDS),
              *(format_mean(dict(training[kind])[n]) if n in dict(training[kind]) else "not measured"
                  for kind in _KINDS))
             for n, _ in forward["linear"]],
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "Linear attention",
        "Softmax attention compares every token with every other. If the comparison is a product of feature "
        "maps, the past is summed into one matrix of "
        "fixed size: the Transformer becomes a recurrent network.",
        claims,
        figures,
        f"One layer: d_model {lab.pick_size(128, 16)}, 4 heads, causal, one row, fp32, no positions; "
        "medians of alternating rounds. The crossover is interpolated between two measured lengths.\n\n"
        f"Generation: a decoder of 2 layers, d_model {lab.pick_size(128, 16)}, one row. The state of linear "
        "attention is filled by reading, the cache of softmax with random keys and values, at the same "
        f"cost per step.\n\nRecall: encoder-decoders of 2+2 layers, d_model 64, {lab.pick_size(250, 4)} "
        f"steps, {len(lab.make_seeds(3))} seeds, feature map elu + 1.",
    )


def time_layers(lab: LabContext, lengths: list[int], with_backward: bool) -> TimesByKind:
    """Milliseconds of every round of one causal attention layer, at every length."""
    shape = AttentionShape.from_sizes(lab.pick_size(128, 16), 4, causal=True)
    torch.manual_seed(lab.seed)
    layers: dict[str, nn.Module] = {
        kind: ATTENTION.build(ATTENTION.check(Choice(kind)), shape, Position(shape)) for kind in _KINDS
    }
    milliseconds: TimesByKind = {kind: [] for kind in _KINDS}
    for length in lengths:
        x = torch.randn(1, length, shape.d_model)
        round_times = time_interleaved(
            {kind: partial(run_layer, layer, x, with_backward) for kind, layer in layers.items()},
            lab.pick_size(5, 2),
        )
        for kind, seconds in round_times.items():
            milliseconds[kind].append((float(length), [1e3 * second for second in seconds]))
    return milliseconds


def run_layer(layer: nn.Module, x: Tensor, with_backward: bool) -> None:
    """Forward pass, or forward and backward pass."""
    with torch.set_grad_enabled(with_backward):
        out = layer(x)
    if with_backward:
        out.sum().backward()
        layer.zero_grad(set_to_none=True)


def find_crossover(times: TimesByKind) -> float | None:
    """Length from which linear attention is faster in the median, interpolated in logarithms; else None."""
    linear, softmax = find_medians(times["linear"]), find_medians(times["softmax"])
    gaps = [(n, math.log(a / b)) for (n, a), (_, b) in zip(linear, softmax, strict=True)]
    if gaps[-1][1] >= 0:
        return None
    slower = [i for i, (_, gap) in enumerate(gaps) if gap >= 0]
    if not slower:
        return gaps[0][0]
    (n0, g0), (n1, g1) = gaps[slower[-1]], gaps[slower[-1] + 1]
    return math.exp(math.log(n0) + (math.log(n1) - math.log(n0)) * g0 / (g0 - g1))


def describe_crossover(times: TimesByKind) -> str:
    """Sentence about the crossover."""
    at, last = find_crossover(times), times["linear"][-1][0]
    ratio = format_mean(slowdown_of_softmax(times))
    ratio_text = f"at {last:,.0f} tokens softmax takes {ratio} times as long"
    if at is None:
        return f"It is never faster up to {last:,.0f} tokens; {ratio_text}."
    first = times["linear"][0][0]
    where = (
        f"already at {first:,.0f} tokens, the shortest length"
        if at <= first
        else f"at about {at:,.0f} tokens"
    )
    return f"They cross {where}; {ratio_text}."


def slowdown_of_softmax(times: TimesByKind) -> list[float]:
    """Time of softmax attention relative to linear attention at the longest length, round by round."""
    return time_ratios(times["softmax"][-1][1], times["linear"][-1][1])


def find_medians(points: Sequence[tuple[float, Sequence[float]]]) -> list[tuple[float, float]]:
    """The median of the rounds at every length."""
    return [(n, median(times)) for n, times in points]


def fit_exponents(points: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Exponent of a power law through the first and the last point, round by round."""
    (n0, t0), (n1, t1) = points[0], points[-1]
    return [math.log(ratio) / math.log(n1 / n0) for ratio in time_ratios(t1, t0)]


def time_generation(
    lab: LabContext, contexts: list[int]
) -> tuple[dict[str, dict[int, list[float]]], dict[str, dict[int, int]]]:
    """Seconds of the next token for every round, and bytes of the cache, by the length of one row."""
    problem = make_copy_task(8, 64)._replace(max_len=contexts[-1] + 256)
    size = pick_model_size(lab)
    token = torch.full((1, 1), 2)
    steppers: dict[tuple[str, int], Stepper] = {}
    for kind in _KINDS:
        config = make_small_config(problem, decoder_attention=Choice(kind), position=Choice("none"), **size)
        model = build(config, lab.seed)
        for context in contexts:
            stepper = Stepper(model, problem.batch(1, 0, 1).source, context + 256)
            while stepper.position < context:
                n = min(_FILL_CHUNK, context - stepper.position)
                if kind == "linear":
                    stepper.feed(torch.full((1, n), 2))
                else:
                    fill_cache(stepper, n)
            steppers[kind, context] = stepper
    cache_bytes = {kind: {n: steppers[kind, n].cache.nbytes for n in contexts} for kind in _KINDS}
    step_times = {}
    # one kind at a time: a long softmax cache evicts everything else from the processor cache
    for kind in _KINDS:
        runners = {n: partial(steppers[kind, n].feed, token) for n in contexts}
        step_times[kind] = time_interleaved(runners, lab.pick_size(15, 3))
    return step_times, cache_bytes


@torch.inference_mode()
def fill_cache(stepper: Stepper, n: int) -> None:
    """Fill a cache with random keys and values of ``n`` tokens, which costs less than computing them."""
    shape = stepper.model.cache_shape
    pos = torch.arange(stepper.position, stepper.position + n)[None]
    stepper.cache.prepare_step([0], pos)
    for layer in stepper.cache.layers:
        k, v = (torch.randn(1, shape.n_kv_heads, n, width) for width in (shape.head_dim, shape.v_dim))
        layer.update(KV(k, v, pos[:, None]))
    stepper.position += n
