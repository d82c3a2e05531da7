"""Attention whose cost grows with the length, not with its square."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from polyhead.analysis.charts import Curve
from polyhead.config import Shape
from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.clock import medians, race, ratios
from polyhead.lab.learn import design, losses, trained
from polyhead.lab.result import SEEDS, Claim, Dots, Figure, Plot, Result, Table
from polyhead.lab.stepping import Stepper, stepwise
from polyhead.lab.tasks import copying, recall
from polyhead.lab.verdict import less, said, within
from polyhead.models.build import build
from polyhead.nn.kv import KV
from polyhead.nn.position.base import Position
from polyhead.registry import ATTENTION, Choice

KATHAROPOULOS = "Katharopoulos et al., 2020"
KINDS = ("softmax", "linear")
CHUNK = 1024  # tokens fed at once while a cache is filled

Curves = dict[str, list[tuple[float, float]]]


@LAB.register("linear")
def linear(bench: Bench) -> Result:
    """Linear against softmax attention: crossover in N, time and memory of a generated token, recall."""
    forward = layer_times(
        bench, bench.size([64, 128, 256, 512, 1024, 2048, 4096, 8192], [16, 32]), learning=False
    )
    training = layer_times(bench, bench.size([64, 128, 256, 512, 1024, 2048, 4096], [16, 32]), learning=True)
    bench.say("a layer measured; now tokens generated after long texts")
    contexts = bench.size([1024, 4096, 16384, 65536], [32, 64])
    taken, held = generated(bench, contexts)
    difference = forms_differ(bench)
    bench.say("generation measured; now recall")
    loss = trainings(bench)
    first, last = contexts[0], contexts[-1]
    flat, grown = (ratios(taken[kind][last], taken[kind][first]) for kind in ("linear", "softmax"))
    slope = {kind: exponent(forward[kind][-3:]) for kind in KINDS}

    claims = [
        Claim(
            "Linear attention costs O(N), softmax attention O(N^2).",
            f"{KATHAROPOULOS}, section 3.2",
            f"Exponent of N over the longest texts, up to {forward['linear'][-1][0]:,.0f} tokens: linear "
            f"{slope['linear']:.2f}, softmax {slope['softmax']:.2f} (wanted at most 1.2, at least 1.6).",
            slope["linear"] <= 1.2 and slope["softmax"] >= 1.6,
        ),
        Claim(
            "From some length on linear attention is faster, forward.",
            f"{KATHAROPOULOS}, figure 1",
            said_crossover(forward),
            crossover(forward) is not None,
        ),
        Claim(
            "From some length on it is faster in training, too.",
            f"{KATHAROPOULOS}, figure 1",
            said_crossover(training),
            crossover(training) is not None,
        ),
        Claim(
            "The time per generated token is constant.",
            f"{KATHAROPOULOS}, section 3.4",
            f"After {last:,} tokens linear takes {said(flat)} times what it takes after {first:,} (constant: "
            f"within 25 %); softmax {said(grown)} times.",
            within(flat, 1.0, 0.25),
        ),
        Claim(
            "The memory of decoding is constant.",
            f"{KATHAROPOULOS}, section 3.4",
            f"A row's state: {held['linear'][first]:,} bytes after {first:,} tokens and {held['linear'][last]:,} after "
            f"{last:,}; softmax: {held['softmax'][first]:,} and {held['softmax'][last]:,}.",
            held["linear"][first] == held["linear"][last],
        ),
        Claim(
            "The parallel and the recurrent form are one function.",
            f"{KATHAROPOULOS}, sections 3.3 and 3.4",
            f"Largest difference of a logit between all at once and token by token: {difference:.2g} (rounding: up to 1e-4).",
            difference < 1e-4,
        ),
        Claim(
            "Linear attention reaches the quality of softmax.",
            f"{KATHAROPOULOS}, section 4, for images and speech; contested for recall by Schlag et al., 2021",
            f"Loss on a recall task: linear {said(loss['linear'])}, softmax {said(loss['softmax'])} "
            "(reached: no more than 0.1 nats worse).",
            less(loss["linear"], loss["softmax"], -0.1),
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        Plot("One causal layer, forward", "tokens N", [Curve(kind, forward[kind]) for kind in KINDS],
             "Milliseconds of one row, both axes logarithmic: a straight line is a power of N.", log=True),
        Plot("One causal layer, forward and backward", "tokens N", [Curve(kind, training[kind]) for kind in KINDS], log=True),
        Plot("Time of a generated token", "tokens so far",
             [Curve(kind, [(n, 1e3 * sorted(t)[len(t) // 2]) for n, t in taken[kind].items()]) for kind in KINDS],
             "Milliseconds of a decoder of 2 layers.", log=True),
        Plot("Memory of a row", "tokens so far",
             [Curve(kind, [(n, b / 1024) for n, b in held[kind].items()]) for kind in KINDS],
             "KiB that the cache holds, both layers.", log=True),
        Dots("Held-out loss on a recall task", "nats a token", loss, SEEDS),
        Table(
            "Generation",
            ("tokens so far", *(f"ms a token, {kind}" for kind in KINDS), *(f"bytes, {kind}" for kind in KINDS)),
            [(n, *(said([1e3 * t for t in taken[kind][n]]) for kind in KINDS), *(held[kind][n] for kind in KINDS))
             for n in contexts],
        ),
        Table(
            "One layer, ms",
            ("tokens N", *(f"{kind}, forward" for kind in KINDS), *(f"{kind}, training" for kind in KINDS)),
            [(int(n), *(f"{dict(forward[kind])[n]:.2f}" for kind in KINDS),
              *(f"{dict(training[kind])[n]:.2f}" if n in dict(training[kind]) else "not measured" for kind in KINDS))
             for n, _ in forward["linear"]],
        ),
    ]  # fmt: skip
    return Result(
        "Linear attention",
        "Softmax attention compares every token with every other. If the comparison is a product of feature maps, the past "
        "folds into one matrix of fixed size: a Transformer that is a recurrent network.",
        claims,
        figures,
        f"One layer: d_model {bench.size(128, 16)}, 4 heads, causal, one row, fp32, no positions; medians of rounds in turns. The "
        "crossover is where the line between two measured lengths meets.\n\nGeneration: a decoder of 2 layers, d_model "
        f"{bench.size(128, 16)}, one row. The state of linear attention is filled by reading, the cache of softmax with random "
        f"keys and values, which cost a step the same.\n\nRecall: encoder-decoders of 2+2 layers, d_model 64, "
        f"{bench.size(250, 4)} steps, {len(bench.seeds(3))} seeds, feature map elu + 1.",
    )


def layer_times(bench: Bench, lengths: list[int], learning: bool) -> Curves:
    """Milliseconds of one causal attention layer at every length."""
    shape = Shape.of(bench.size(128, 16), 4, causal=True)
    torch.manual_seed(bench.seed)
    layers: dict[str, nn.Module] = {
        kind: ATTENTION.build(ATTENTION.check(Choice(kind)), shape, Position(shape)) for kind in KINDS
    }
    found: Curves = {kind: [] for kind in KINDS}
    for length in lengths:
        x = torch.randn(1, length, shape.d_model)
        taken = race(
            {kind: partial(once, layer, x, learning) for kind, layer in layers.items()}, bench.size(5, 2)
        )
        for kind, seconds in medians(taken).items():
            found[kind].append((float(length), 1e3 * seconds))
    return found


def once(layer: nn.Module, x: Tensor, learning: bool) -> None:
    """Forward, or forward and backward."""
    with torch.set_grad_enabled(learning):
        out = layer(x)
    if learning:
        out.sum().backward()
        layer.zero_grad(set_to_none=True)


def crossover(times: Curves) -> float | None:
    """The length from which on linear attention is faster, interpolated in logarithms; None if it never is."""
    gaps = [(n, math.log(a / b)) for (n, a), (_, b) in zip(times["linear"], times["softmax"], strict=True)]
    if gaps[-1][1] >= 0:
        return None
    slower = [i for i, (_, gap) in enumerate(gaps) if gap >= 0]
    if not slower:
        return gaps[0][0]
    (n0, g0), (n1, g1) = gaps[slower[-1]], gaps[slower[-1] + 1]
    return math.exp(math.log(n0) + (math.log(n1) - math.log(n0)) * g0 / (g0 - g1))


def said_crossover(times: Curves) -> str:
    """The crossover in words."""
    at, (last, slow), (_, fast) = crossover(times), times["softmax"][-1], times["linear"][-1]
    there = f"at {last:,.0f} tokens softmax takes {slow / fast:.2g} times as long"
    if at is None:
        return f"It is never faster up to {last:,.0f} tokens; {there}."
    first = times["linear"][0][0]
    where = f"already at {first:,.0f} tokens, the shortest" if at <= first else f"at about {at:,.0f} tokens"
    return f"They cross {where}; {there}."


def exponent(points: list[tuple[float, float]]) -> float:
    """Of a power law through the first and the last point."""
    (n0, t0), (n1, t1) = points[0], points[-1]
    return math.log(t1 / t0) / math.log(n1 / n0)


def generated(
    bench: Bench, contexts: list[int]
) -> tuple[dict[str, dict[int, list[float]]], dict[str, dict[int, int]]]:
    """Seconds of the next token, every round, and bytes of the cache, after so many tokens of one row."""
    problem = copying(8, 64)._replace(max_len=contexts[-1] + 256)
    size = bench.size({"d_model": 128, "d_ff": 256}, {"d_model": 16, "d_ff": 16})
    token = torch.full((1, 1), 2)
    steppers: dict[tuple[str, int], Stepper] = {}
    for kind in KINDS:
        config = design(problem, decoder_attention=Choice(kind), position=Choice("none"), **size)
        model = build(config, bench.seed)
        for context in contexts:
            stepper = Stepper(model, problem.batch(1, 0, 1).source, context + 256)
            while stepper.at < context:
                (read if kind == "linear" else fill)(stepper, min(CHUNK, context - stepper.at))
            steppers[kind, context] = stepper
    held = {kind: {n: steppers[kind, n].cache.nbytes for n in contexts} for kind in KINDS}
    taken = {}
    for kind in KINDS:  # each by itself, for a long cache of softmax drives all else out of the processor's
        runners = {n: partial(steppers[kind, n].feed, token) for n in contexts}
        taken[kind] = race(runners, bench.size(15, 3))
    return taken, held


def read(stepper: Stepper, n: int) -> None:
    """Feed so many tokens."""
    stepper.feed(torch.full((1, n), 2))


@torch.inference_mode()
def fill(stepper: Stepper, n: int) -> None:
    """Put random keys and values of so many tokens into a cache, which costs less than computing them."""
    shape = stepper.model.cache_shape
    pos = torch.arange(stepper.at, stepper.at + n)[None]
    stepper.cache.begin([0], pos)
    for layer in stepper.cache.layers:
        k, v = (torch.randn(1, shape.n_kv_heads, n, width) for width in (shape.head_dim, shape.v_dim))
        layer.update(KV(k, v, pos[:, None]))
    stepper.at += n


def forms_differ(bench: Bench) -> float:
    """Largest difference of a logit between linear attention at once and token by token."""
    problem = copying(bench.size(200, 8), 64)
    model = build(design(problem, attention=Choice("linear")), bench.seed).eval()
    batch = problem.batch(bench.seed, 0, 4)
    with torch.inference_mode():
        whole: Tensor = model(batch.source, batch.target)
    return float((whole - stepwise(model, batch.source, batch.target)).abs().max())


def trainings(bench: Bench) -> dict[str, list[float]]:
    """Losses of both kinds on a recall task."""
    problem = recall()
    designs = {kind: design(problem, attention=Choice(kind)) for kind in KINDS}
    return losses(trained(bench, problem, designs, steps=bench.size(250, 4)))
