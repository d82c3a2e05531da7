"""Placement of the norm: after the sub-layer, before it, or on both sides."""

from __future__ import annotations

import math
import statistics
from typing import Any

from polyhead import build
from polyhead.nn.loss import cross_entropy
from polyhead.viz.plot import Curve
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import Claim, ExperimentResult, Figure, LinePlot, ResultTable
from polyhead_lab.short_training import (
    TrainingResult,
    collect_losses,
    make_small_config,
    plot_loss_curves,
    plot_losses,
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
# displayed name -> placement of the norm, and whether the learning rate is warmed up
_TRAINED_DESIGNS = {
    "post-norm, no warm-up": ("post-norm", False),
    "post-norm, warm-up": ("post-norm", True),
    "pre-norm, no warm-up": ("pre-norm", False),
    "pre-norm, warm-up": ("pre-norm", True),
    "sandwich, no warm-up": ("sandwich", False),
}
_POST, _POST_WARM, _PRE, _PRE_WARM, _SANDWICH = _TRAINED_DESIGNS
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
    loss = collect_losses(deep)
    post, post_warm, pre, pre_warm, sandwich = (
        format_mean(loss[name]) for name in (_POST, _POST_WARM, _PRE, _PRE_WARM, _SANDWICH)
    )

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
            f"{at}, {steps} steps: loss {post} without and {post_warm} with warm-up; chance is "
            f"{_CHANCE_LOSS:.2f}.",
            verdict_less(loss[_POST_WARM], loss[_POST]),
        ),
        Claim(
            "Pre-norm trains without warm-up.",
            f"{XIONG}, section 4",
            f"{at}: loss {pre} without warm-up; half of chance is {_CHANCE_LOSS / 2:.2f}.",
            is_learned(loss[_PRE]),
        ),
        Claim(
            "Warm-up makes no difference to pre-norm.",
            f"{XIONG}, section 4: it can be removed",
            f"{at}: loss {pre} without and {pre_warm} with warm-up (no difference: within 0.1).",
            verdict_same(loss[_PRE], loss[_PRE_WARM], 0.1),
        ),
        Claim(
            "Without warm-up pre-norm learns faster than post-norm with it.",
            f"{XIONG}, section 4",
            f"{at}: loss {pre} against {post_warm} after {steps} steps.",
            verdict_less(loss[_PRE], loss[_POST_WARM]),
        ),
        Claim(
            "With a second norm on the sub-layer output pre-norm still trains without warm-up.",
            "Ding et al., 2021 (CogView), section 2.4: sandwich-LN",
            f"{at}: loss {sandwich} against {pre} of pre-norm, both without warm-up (preserved: at most 0.1 "
            "worse).",
            verdict_less(loss[_SANDWICH], loss[_PRE], -0.1),
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
        layers = f"{depth}+{depth} layers"
        curves = plot_loss_curves(layers, cells)._replace(caption=f"Chance is {_CHANCE_LOSS:.2f}.")
        figures += [curves, plot_losses(layers, collect_losses(cells))]
    columns = [collect_losses(cells) for cells in trained.values()]
    figures.append(
        ResultTable(
            "All numbers",
            ("design", *(f"loss, {depth}+{depth} layers" for depth in trained)),
            [(name, *(format_mean(losses[name]) for losses in columns)) for name in deep],
        )
    )
    return ExperimentResult(
        "Position of the norm",
        "The original Transformer normalises after each residual addition, N(x + F(x)), and needs a warm-up "
        "of the learning rate. Later ones normalise before the sub-layer, x + F(N(x)). The proposed "
        "explanation is the size of the gradients at the start.",
        claims,
        figures,
        "Gradients: of the mean cross-entropy of one batch of a copying task, for random Xavier weights, "
        f"{len(lab.make_seeds(8))} seeds, d_model 64, as many encoder as decoder layers. The exponent of L "
        f"is the slope of log norm over log L.\n\nTrainings: copying 12 of 16 symbols, {steps} steps of 32 "
        "rows at a constant rate of 2e-3, after a linear warm-up over 40 % of the steps where there is one, "
        f"no clipping; {len(lab.make_seeds(3))} seeds, which share weights and data between designs.",
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


def train_norm_placements(lab: LabContext, depth: int, steps: int) -> dict[str, list[TrainingResult]]:
    """Train each design with a number of layers, one run per seed."""
    runs: dict[str, list[TrainingResult]] = {name: [] for name in _TRAINED_DESIGNS}
    for seed in lab.make_seeds(3):
        for name, (placement, has_warmup) in _TRAINED_DESIGNS.items():
            run = run_short_training(
                make_small_config(COPY_TASK, n_layers=depth, **_NORM_PLACEMENTS[placement]),
                shrink_if_quick(lab, COPY_TASK),
                seed=seed,
                steps=steps,
                warmup=round(0.4 * steps) if has_warmup else 0,
                schedule="constant",
                clip_norm=0.0,
            )
            lab.info(f"{depth} layers, seed {seed}, {name}: loss {run.loss:.3f}")
            runs[name].append(run)
    return runs


def is_learned(losses: list[float]) -> bool | None:
    """Whether the loss of a design is below half of chance; False if a run diverged."""
    return verdict_below(losses, _CHANCE_LOSS / 2) if all(map(math.isfinite, losses)) else False
