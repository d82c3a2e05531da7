"""Placement of the norm: after the sub-layer, before it, or on both sides."""

from __future__ import annotations

import math
import statistics
from typing import Any

from polyhead import build
from polyhead.nn.loss import cross_entropy
from polyhead.viz.plot import Curve
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import SEEDS_NOTE, Claim, DotPlot, ExperimentResult, Figure, LinePlot, ResultTable
from polyhead_lab.short_training import (
    TrainingResult,
    collect_first_curves,
    make_small_config,
    run_short_training,
    shrink_if_quick,
)
from polyhead_lab.statistics import (
    format_mean,
    verdict_above,
    verdict_below,
    verdict_less,
    verdict_same,
    verdict_within,
)
from polyhead_lab.tasks import make_copy_task

XIONG = "Xiong et al., 2020"
COPY_TASK = make_copy_task()._replace(rows=32)
_CHANCE_LOSS = math.log(16)  # nats per token of a uniform guess among the 16 symbols
_NORM_PLACEMENTS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm_first": False},
    "pre-norm": {"norm_first": True},
    "sandwich": {"norm_first": True, "sandwich_norm": True},
}
GradientNorms = dict[str, dict[int, list[list[float]]]]
"""placement -> depth -> a row for every seed: gradient norms of the decoder layers, first to last."""


@EXPERIMENTS.register("prenorm")
def measure_prenorm(lab: LabContext) -> ExperimentResult:
    """Pre-norm, post-norm and sandwich: gradients by layer at the start, and training without warm-up."""
    depths = lab.pick_size([2, 4, 6, 12], [2, 3])
    norms: GradientNorms = {
        name: {
            depth: [measure_gradients(depth, seed, placement) for seed in lab.make_seeds(8)]
            for depth in depths
        }
        for name, placement in _NORM_PLACEMENTS.items()
    }
    lab.info("gradients measured; now training with and without warm-up")
    steps = lab.pick_size(150, 4)
    trained = {depth: train_norm_placements(lab, depth, steps) for depth in lab.pick_size((2, 6), (2,))}
    deepest, deep = depths[-1], trained[max(trained)]
    at = f"{max(trained)}+{max(trained)} layers"
    growth = {name: [row[-1] / row[0] for row in by_depth[deepest]] for name, by_depth in norms.items()}
    slope = {name: fit_depth_exponents(by_depth) for name, by_depth in norms.items()}
    loss = {key: [run.loss for run in runs] for key, runs in deep.items()}

    claims = [
        Claim(
            "At the start, post-norm's gradients are large near the output and grow toward it.",
            f"{XIONG}, figure 3 and theorem 1",
            f"Gradient of the last decoder layer over that of the first, {deepest} layers: "
            f"{format_mean(growth['post-norm'])}.",
            verdict_above(growth["post-norm"], 1.0),
        ),
        Claim(
            "Pre-norm's gradients are about equal in all layers.",
            f"{XIONG}, figure 3",
            f"The same ratio: {format_mean(growth['pre-norm'])} (about equal: within a factor of 2).",
            verdict_within([math.log2(g) for g in growth["pre-norm"]], 0.0, 1.0),
        ),
        Claim(
            "Near the output, pre-norm's gradient falls with depth as 1/sqrt(L).",
            f"{XIONG}, theorem 1: O(d sqrt(ln d / L))",
            f"Exponent of L for the last decoder layer: {format_mean(slope['pre-norm'])} (target: -0.5 ± "
            "0.2).",
            verdict_within(slope["pre-norm"], -0.5, 0.2),
        ),
        Claim(
            "Near the output, post-norm's gradient does not depend on depth.",
            f"{XIONG}, theorem 1: O(d sqrt(ln d))",
            f"Exponent of L for the last decoder layer: {format_mean(slope['post-norm'])} (target: 0 ± 0.2).",
            verdict_within(slope["post-norm"], 0.0, 0.2),
        ),
        Claim(
            "Post-norm requires warm-up: without it, it trains worse or not at all.",
            f"{XIONG}, section 3.2; Vaswani et al., 2017, warm up over 4,000 steps",
            f"{at}, {steps} steps: loss {format_mean(loss['post-norm', False])} without and "
            f"{format_mean(loss['post-norm', True])} with warm-up; chance is {_CHANCE_LOSS:.2f}.",
            verdict_less(loss["post-norm", True], loss["post-norm", False]),
        ),
        Claim(
            "Pre-norm trains without warm-up.",
            f"{XIONG}, section 4",
            f"{at}: loss {format_mean(loss['pre-norm', False])} without warm-up; half of chance is "
            f"{_CHANCE_LOSS / 2:.2f}.",
            is_learned(loss["pre-norm", False]),
        ),
        Claim(
            "Warm-up makes no difference to pre-norm.",
            f"{XIONG}, section 4: it can be removed",
            f"{at}: loss {format_mean(loss['pre-norm', False])} without and "
            f"{format_mean(loss['pre-norm', True])} with warm-up "
            "(no difference: within 0.1).",
            verdict_same(loss["pre-norm", False], loss["pre-norm", True], 0.1),
        ),
        Claim(
            "Without warm-up pre-norm learns faster than post-norm with it.",
            f"{XIONG}, section 4",
            f"{at}: loss {format_mean(loss['pre-norm', False])} against "
            f"{format_mean(loss['post-norm', True])} after {steps} steps.",
            verdict_less(loss["pre-norm", False], loss["post-norm", True]),
        ),
        Claim(
            "With a second norm on the sub-layer output pre-norm still trains without warm-up.",
            "Ding et al., 2021 (CogView), section 2.4: sandwich-LN",
            f"{at}: loss {format_mean(loss['sandwich', False])} against "
            f"{format_mean(loss['pre-norm', False])} of pre-norm, both without warm-up (preserved: at most "
            "0.1 worse).",
            verdict_less(loss["sandwich", False], loss["pre-norm", False], -0.1),
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        LinePlot(
            f"Gradient norm by decoder layer at the start, {deepest} layers",
            "layer",
            [Curve(name, average_by_layer(by_depth[deepest])) for name, by_depth in norms.items()],
            "Of all weights of a layer, mean over seeds. The first layer is next to the input, the last to "
            "the output.",
        ),
        LinePlot(
            "Gradient norm of the last decoder layer at the start",
            "layers L",
            [
                Curve(name, [(d, statistics.mean(row[-1] for row in rows)) for d, rows in by_depth.items()])
                for name, by_depth in norms.items()
            ],
            "Theory: pre-norm falls as 1/sqrt(L), post-norm stays.",
            log=True,
        ),
    ]
    for depth, cells in trained.items():
        figures.append(
            LinePlot(
                f"Training loss, {depth}+{depth} layers (first seed)",
                "step",
                collect_first_curves({format_design(*key): runs for key, runs in cells.items()}),
                f"Chance is {_CHANCE_LOSS:.2f}.",
                from_zero=True,
            )
        )
        figures.append(
            DotPlot(
                f"Held-out loss, {depth}+{depth} layers",
                "nats per token",
                {format_design(*key): [run.loss for run in runs] for key, runs in cells.items()},
                SEEDS_NOTE,
            )
        )
    figures.append(
        ResultTable(
            "All numbers",
            ("design", *(f"loss, {depth}+{depth} layers" for depth in trained)),
            [
                (
                    format_design(*key),
                    *(format_mean([run.loss for run in cells[key]]) for cells in trained.values()),
                )
                for key in deep
            ],
        )
    )
    return ExperimentResult(
        "Position of the norm",
        "The original Transformer normalises after each residual addition, N(x + F(x)), and needs a warm-up "
        "of the learning rate. Later ones normalise before the sub-layer, x + F(N(x)). The proposed "
        "explanation is the size "
        "of the gradients at the start.",
        claims,
        figures,
        f"Gradients: of the mean cross-entropy of one batch of a copying task, for random Xavier weights, "
        f"{len(lab.make_seeds(8))} seeds, d_model 64, as many encoder as decoder layers. The exponent of L "
        f"is the slope of log norm over log L.\n\nTrainings: copying 12 of 16 symbols, {steps} steps of 32 "
        "rows at a constant rate of 2e-3, after a linear warm-up over 40 % of the steps where there is "
        f"one, no clipping; {len(lab.make_seeds(3))} seeds, "
        "which share weights and data between designs.",
    )


def measure_gradients(depth: int, seed: int, placement: dict[str, Any]) -> list[float]:
    """Gradient norm of each decoder layer of a freshly initialised model."""
    model = build(make_small_config(COPY_TASK, n_layers=depth, **placement), seed).train()
    batch = COPY_TASK.batch(seed, 0)
    loss = cross_entropy(model.features(batch.source, batch.target), model.head, batch.labels)
    (loss.total / loss.count).backward()
    squares = (
        sum(float(p.grad.square().sum()) for p in layer.parameters() if p.grad is not None)
        for layer in model.decoder.layers
    )
    return [math.sqrt(square) for square in squares]


def fit_depth_exponents(by_depth: dict[int, list[list[float]]]) -> list[float]:
    """Exponent of L in the gradient norm of the last layer, for each seed: least squares in logarithms."""
    xs = [math.log(depth) for depth in by_depth]
    seeds = range(len(next(iter(by_depth.values()))))
    return [
        statistics.linear_regression(xs, [math.log(rows[seed][-1]) for rows in by_depth.values()]).slope
        for seed in seeds
    ]


def average_by_layer(rows: list[list[float]]) -> list[tuple[float, float]]:
    """(layer from 1, mean norm)."""
    return [(i + 1, statistics.mean(values)) for i, values in enumerate(zip(*rows, strict=True))]


def train_norm_placements(
    lab: LabContext, depth: int, steps: int
) -> dict[tuple[str, bool], list[TrainingResult]]:
    """Train each placement of the norm without and with warm-up (sandwich only without), one run per seed."""
    cells: dict[tuple[str, bool], list[TrainingResult]] = {}
    for seed in lab.make_seeds(3):
        for name, placement in _NORM_PLACEMENTS.items():
            for has_warmup in (False, True) if name != "sandwich" else (False,):
                run = run_short_training(
                    make_small_config(COPY_TASK, n_layers=depth, **placement),
                    shrink_if_quick(lab, COPY_TASK),
                    seed=seed,
                    steps=steps,
                    warmup=round(0.4 * steps) if has_warmup else 0,
                    schedule="constant",
                    clip_norm=0.0,
                )
                lab.info(
                    f"{depth} layers, seed {seed}, {format_design(name, has_warmup)}: loss {run.loss:.3f}"
                )
                cells.setdefault((name, has_warmup), []).append(run)
    return cells


def format_design(name: str, has_warmup: bool) -> str:
    """Displayed name of a design."""
    return f"{name}, {'warm-up' if has_warmup else 'no warm-up'}"


def is_learned(losses: list[float]) -> bool | None:
    """Whether the loss of a design is below half of chance; False if a run diverged."""
    return verdict_below(losses, _CHANCE_LOSS / 2) if all(map(math.isfinite, losses)) else False
