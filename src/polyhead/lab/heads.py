"""How many heads, and how many of them need keys and values of their own."""

from __future__ import annotations

from functools import partial

import torch

from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.clock import medians, race, ratios
from polyhead.lab.learn import by_task, design, loss_dots, loss_plot, losses, slowness, slowness_dots
from polyhead.lab.result import Claim, Dots, Figure, Result, Table
from polyhead.lab.stepping import Stepper, bytes_per_token
from polyhead.lab.tasks import COPY_AND_RECALL, copying
from polyhead.lab.verdict import above, all_of, less, said
from polyhead.models.build import build

SHAZEER, AINSLIE = "Shazeer, 2019", "Ainslie et al., 2023"
DESIGNS = {"1 head": (1, 1), "MHA: 4 heads": (4, 4), "GQA: 4 on 2": (4, 2), "MQA: 4 on 1": (4, 1)}
SINGLE, MHA, GQA, MQA = DESIGNS
TASKS = COPY_AND_RECALL
WORSE = 0.1  # nats a token that count as worse


@LAB.register("heads")
def heads(bench: Bench) -> Result:
    """One head against many, and MHA against GQA and MQA: quality, bytes of the cache, decoding speed."""
    designs = {name: {"n_heads": n, "n_kv_heads": kv} for name, (n, kv) in DESIGNS.items()}
    runs = by_task(bench, TASKS, designs)
    loss = {task: losses(cells) for task, cells in runs.items()}
    slow = {task: slowness(cells) for task, cells in runs.items()}
    parameters = {name: rs[0].parameters for name, rs in runs["recall"].items()}
    exact = {name: bytes_per_token(rs[0].model) for name, rs in runs["recall"].items()}
    bench.say("trained; now decoding speed on a long cache")
    context, taken = speed(bench)
    middle = medians(taken)
    faster = {name: ratios(taken[MHA], taken[name]) for name in (GQA, MQA)}
    held = {name: kv_bytes(*DESIGNS[name]) for name in DESIGNS}

    claims = [
        Claim(
            "Several heads are better than one of the same total width.",
            "Vaswani et al., 2017, section 3.2.2 and table 3 (A)",
            "; ".join(f"{task}: {said(loss[task][MHA])} with 4 heads, {said(loss[task][SINGLE])} with 1" for task in TASKS)
            + f". Parameters are equal: {parameters[MHA]:,}.",
            all_of(less(loss[task][MHA], loss[task][SINGLE]) for task in TASKS),
        ),
        Claim(
            "Several heads learn faster than one.",
            "not said there; asked here because both may end alike",
            "Mean loss over training, "
            + "; ".join(f"{task}: {said(slow[task][MHA])} with 4 heads, {said(slow[task][SINGLE])} with 1" for task in TASKS)
            + ".",
            all_of(less(slow[task][MHA], slow[task][SINGLE]) for task in TASKS),
        ),
        Claim(
            "Grouped-query attention is about as good as multi-head attention.",
            f"{AINSLIE}, section 3.2",
            "; ".join(f"{task}: {said(loss[task][GQA])} against {said(loss[task][MHA])}" for task in TASKS)
            + f" (about as good: less than {WORSE} nats worse).",
            all_of(less(loss[task][GQA], loss[task][MHA], -WORSE) for task in TASKS),
        ),
        Claim(
            "Multi-query attention costs only a little quality.",
            f"{SHAZEER}, section 4",
            "; ".join(f"{task}: {said(loss[task][MQA])} against {said(loss[task][MHA])}" for task in TASKS)
            + f" (a little: less than {WORSE} nats).",
            all_of(less(loss[task][MQA], loss[task][MHA], -WORSE) for task in TASKS),
        ),
        Claim(
            "The cache shrinks by the factor n_heads / n_kv_heads.",
            f"{SHAZEER}, section 3; {AINSLIE}, section 2.2",
            ", ".join(f"{name.split(':')[0]} {exact[name] - 8:,.0f} bytes a token" for name in (MHA, GQA, MQA))
            + "; in closed form 2 x layers x n_kv_heads x head_dim x 4.",
            all(exact[name] - 8 == held[name] for name in DESIGNS) and held[MHA] == 2 * held[GQA] == 4 * held[MQA],
        ),
        Claim(
            "Decoding from a long cache is faster with fewer key and value heads.",
            f"{SHAZEER}, section 4.3; {AINSLIE}, figure 3",
            f"A step over {context:,} cached tokens: GQA {said(faster[GQA])}, MQA "
            f"{said(faster[MQA])} times as fast as MHA.",
            all_of(above(r, 1.0) for r in faster.values()),
        ),
    ]  # fmt: skip
    figures: list[Figure] = [loss_dots(task, means) for task, means in loss.items()]
    figures += [slowness_dots(task, means) for task, means in slow.items()]
    figures.append(loss_plot("recall", runs["recall"]))
    figures.append(
        Dots(
            f"One decoding step over {context:,} cached tokens",
            "milliseconds",
            {name: [1e3 * t for t in seconds] for name, seconds in taken.items()},
            "A small dot a round; designs ran in turns. Here the model is wider, so that reading the cache is what takes time.",
        )
    )
    figures.append(
        Table(
            "All numbers",
            ("design", "parameters", "cache bytes a token", *(f"loss, {task}" for task in TASKS), "ms a step"),
            [
                (name, parameters[name], int(exact[name]), *(said(loss[task][name]) for task in TASKS),
                 f"{1e3 * middle[name]:.2f}" if name in middle else "not measured")
                for name in DESIGNS
            ],
            "Of the bytes, 8 are the token's position. GQA and MQA have fewer parameters: their key and value projections are narrower.",
        )
    )  # fmt: skip
    return Result(
        "Heads, and what they keep",
        "Many heads look at several places at once. While writing, each head's keys and values of all former tokens must "
        "be kept and read again at every step; grouped-query and multi-query attention let heads share them.",
        claims,
        figures,
        "Quality: encoder-decoders of 2+2 layers, d_model 64, d_ff 128, pre-norm; "
        + ", ".join(f"{task} {bench.size(steps, 4)} steps" for task, (_, steps) in TASKS.items())
        + f"; {len(bench.seeds(3))} seeds, which share data between designs. Every attention of a design (encoder, decoder, "
        f"cross) has these heads.\n\nSpeed: a decoder of 2 layers, d_model 256, 8 heads on 8, 4 or 1, fresh weights, "
        f"8 rows of {context:,} cached tokens, fp32; rounds in turns.",
    )


def kv_bytes(n_heads: int, n_kv_heads: int) -> int:
    """Keys and values of a token in closed form: both, in 2 layers, fp32, head_dim 64 / n_heads."""
    return 2 * 2 * n_kv_heads * (64 // n_heads) * 4


def speed(bench: Bench) -> tuple[int, dict[str, list[float]]]:
    """Seconds of a decoding step over a long cache, MHA, GQA and MQA in turns."""
    context, rows = bench.size((1024, 8), (16, 2))
    problem = copying(16)
    size = bench.size({"d_model": 256, "d_ff": 512}, {"d_model": 32, "d_ff": 32})
    token = torch.full((rows, 1), 2)
    steppers = {}
    for name, n_kv_heads in ((MHA, 8), (GQA, 4), (MQA, 1)):
        model = build(
            design(problem, n_heads=8, n_kv_heads=n_kv_heads, max_len=context + 64, **size), bench.seed
        )
        steppers[name] = Stepper(model, problem.batch(1, 0, rows).source, context + 64)
        steppers[name].feed(torch.full((rows, context), 2))
    runners = {name: partial(stepper.feed, token) for name, stepper in steppers.items()}
    return context, race(runners, bench.size(15, 3))
