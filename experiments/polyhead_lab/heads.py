"""How many heads attention needs, and how many key and value heads."""

from __future__ import annotations

from functools import partial

import torch

from polyhead import build
from polyhead_lab.caches import Stepper, cache_bytes_per_token
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import Claim, DotPlot, ExperimentResult, Figure, ResultTable
from polyhead_lab.short_training import (
    collect_losses,
    collect_mean_losses,
    make_small_config,
    plot_loss_curves,
    plot_losses,
    plot_mean_losses,
    train_by_task,
)
from polyhead_lab.statistics import (
    format_mean,
    median_times,
    time_interleaved,
    time_ratios,
    verdict_above,
    verdict_all,
    verdict_less,
)
from polyhead_lab.tasks import COPY_AND_RECALL, make_copy_task

SHAZEER, AINSLIE = "Shazeer, 2019", "Ainslie et al., 2023"
HEAD_DESIGNS = {"1 head": (1, 1), "MHA: 4 heads": (4, 4), "GQA: 4 on 2": (4, 2), "MQA: 4 on 1": (4, 1)}
SINGLE, MHA, GQA, MQA = HEAD_DESIGNS
_TASKS = COPY_AND_RECALL
_WORSE_MARGIN = 0.1  # difference in nats per token that counts as worse


@EXPERIMENTS.register("heads")
def measure_heads(lab: LabContext) -> ExperimentResult:
    """One head against many, and MHA against GQA and MQA: quality, bytes of the cache, decoding speed."""
    designs = {name: {"n_heads": n, "n_kv_heads": kv} for name, (n, kv) in HEAD_DESIGNS.items()}
    runs = train_by_task(lab, _TASKS, designs)
    loss = {task: collect_losses(cells) for task, cells in runs.items()}
    mean_loss = {task: collect_mean_losses(cells) for task, cells in runs.items()}
    parameters = {name: rs[0].parameters for name, rs in runs["recall"].items()}
    exact = {name: cache_bytes_per_token(rs[0].model) for name, rs in runs["recall"].items()}
    lab.info("trained; now decoding speed on a long cache")
    context, step_times = time_long_cache(lab)
    medians = median_times(step_times)
    faster = {name: time_ratios(step_times[MHA], step_times[name]) for name in (GQA, MQA)}
    closed_form_bytes = {name: kv_bytes(*HEAD_DESIGNS[name]) for name in HEAD_DESIGNS}

    claims = [
        Claim(
            "Several heads are better than one with the same total width.",
            "Vaswani et al., 2017, section 3.2.2 and table 3 (A)",
            "; ".join(f"{task}: {format_mean(loss[task][MHA])} with 4 heads, "
                      f"{format_mean(loss[task][SINGLE])} with 1" for task in _TASKS)
            + f". Parameters are equal: {parameters[MHA]:,}.",
            verdict_all(verdict_less(loss[task][MHA], loss[task][SINGLE]) for task in _TASKS),
        ),
        Claim(
            "Several heads learn faster than one.",
            "not claimed there; tested here because both may end equal",
            "Mean loss over training, "
            + "; ".join(f"{task}: {format_mean(mean_loss[task][MHA])} with 4 heads, "
                        f"{format_mean(mean_loss[task][SINGLE])} with 1" for task in _TASKS)
            + ".",
            verdict_all(verdict_less(mean_loss[task][MHA], mean_loss[task][SINGLE]) for task in _TASKS),
        ),
        Claim(
            "Grouped-query attention is about as good as multi-head attention.",
            f"{AINSLIE}, section 3.2",
            "; ".join(f"{task}: {format_mean(loss[task][GQA])} against {format_mean(loss[task][MHA])}"
                for task in _TASKS)
            + f" (about as good: less than {_WORSE_MARGIN} nats worse).",
            verdict_all(verdict_less(loss[task][GQA], loss[task][MHA], -_WORSE_MARGIN) for task in _TASKS),
        ),
        Claim(
            "Multi-query attention costs only a little quality.",
            f"{SHAZEER}, section 4",
            "; ".join(f"{task}: {format_mean(loss[task][MQA])} against {format_mean(loss[task][MHA])}"
                for task in _TASKS)
            + f" (a little: less than {_WORSE_MARGIN} nats).",
            verdict_all(verdict_less(loss[task][MQA], loss[task][MHA], -_WORSE_MARGIN) for task in _TASKS),
        ),
        Claim(
            "The cache shrinks by the factor n_heads / n_kv_heads.",
            f"{SHAZEER}, section 3; {AINSLIE}, section 2.2",
            f"MHA {exact[MHA] - 8:,.0f} bytes per token, GQA {exact[GQA] - 8:,.0f} bytes per token, "
            f"MQA {exact[MQA] - 8:,.0f} bytes per token; in closed form "
            "2 x layers x n_kv_heads x head_dim x 4.",
            all(exact[name] - 8 == closed_form_bytes[name] for name in HEAD_DESIGNS)
                and closed_form_bytes[MHA] == 2 * closed_form_bytes[GQA] == 4 * closed_form_bytes[MQA],
        ),
        Claim(
            "Decoding with a long cache is faster with fewer key/value heads.",
            f"{SHAZEER}, section 4.3; {AINSLIE}, figure 3",
            f"A step over {context:,} cached tokens: GQA {format_mean(faster[GQA])}, MQA "
            f"{format_mean(faster[MQA])} times as fast as MHA.",
            verdict_all(verdict_above(r, 1.0) for r in faster.values()),
        ),
    ]  # fmt: skip
    figures: list[Figure] = [plot_losses(task, means) for task, means in loss.items()]
    figures += [plot_mean_losses(task, means) for task, means in mean_loss.items()]
    figures.append(plot_loss_curves("recall", runs["recall"]))
    figures.append(
        DotPlot(
            f"One decoding step over {context:,} cached tokens",
            "milliseconds",
            {name: [1e3 * t for t in seconds] for name, seconds in step_times.items()},
            "One small dot per round; the designs alternated. Here the model is wider, so that reading the "
            "cache dominates the time.",
        )
    )
    figures.append(
        ResultTable(
            "All numbers",
            ("design", "parameters", "cache bytes per token", *(f"loss, {task}" for task in _TASKS),
                "ms per step"),
            [
                (name, parameters[name], int(exact[name]),
                    *(format_mean(loss[task][name]) for task in _TASKS),
                 f"{1e3 * medians[name]:.2f}" if name in medians else "not measured")
                for name in HEAD_DESIGNS
            ],
            "8 of the bytes are the token's position. GQA and MQA have fewer parameters: their key "
                    "and value projections are narrower.",
        )
    )  # fmt: skip
    return ExperimentResult(
        "Heads and their cache",
        "Several heads attend to several positions at once. In decoding, each head's keys and values of all "
        "earlier tokens must be stored and read at every step; grouped-query and multi-query attention "
        "share them between heads.",
        claims,
        figures,
        "Quality: encoder-decoders of 2+2 layers, d_model 64, d_ff 128, pre-norm; "
        + ", ".join(f"{task} {lab.pick_size(steps, 4)} steps" for task, (_, steps) in _TASKS.items())
        + f"; {len(lab.make_seeds(3))} seeds, which share data between designs. Every attention of a "
        "design (encoder, decoder, cross) has these heads.\n\nSpeed: a decoder of 2 layers, "
        f"d_model 256, 8 heads on 8, 4 or 1, random weights, 8 rows of {context:,} cached tokens, "
        "fp32; alternating rounds.",
    )


def kv_bytes(n_heads: int, n_kv_heads: int) -> int:
    """Bytes of a token's keys and values in closed form: both, in 2 layers, fp32, head_dim 64 / n_heads."""
    return 2 * 2 * n_kv_heads * (64 // n_heads) * 4


def time_long_cache(lab: LabContext) -> tuple[int, dict[str, list[float]]]:
    """Context length, and seconds of a decoding step over such a cache, for MHA, GQA and MQA interleaved."""
    context, rows = lab.pick_size((1024, 8), (16, 2))
    problem = make_copy_task(16)
    size = lab.pick_size({"d_model": 256, "d_ff": 512}, {"d_model": 32, "d_ff": 32})
    token = torch.full((rows, 1), 2)
    steppers = {}
    for name, n_kv_heads in ((MHA, 8), (GQA, 4), (MQA, 1)):
        model = build(
            make_small_config(problem, n_heads=8, n_kv_heads=n_kv_heads, max_len=context + 64, **size),
            lab.seed,
        )
        steppers[name] = Stepper(model, problem.batch(1, 0, rows).source, context + 64)
        steppers[name].feed(torch.full((rows, context), 2))
    runners = {name: partial(stepper.feed, token) for name, stepper in steppers.items()}
    return context, time_interleaved(runners, lab.pick_size(15, 3))
