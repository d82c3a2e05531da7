"""Where the norm stands: after the sub-layer, before it, or on both sides."""

from __future__ import annotations

import math
import statistics
from typing import Any

from polyhead.analysis.charts import Curve
from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.learn import Learned, design, first_curves, learn, sized
from polyhead.lab.result import SEEDS, Claim, Dots, Figure, Plot, Result, Table
from polyhead.lab.tasks import copying
from polyhead.lab.verdict import above, alike, below, less, said, within
from polyhead.models.build import build
from polyhead.nn.loss import cross_entropy

XIONG = "Xiong et al., 2020"
PROBLEM = copying()._replace(rows=32)
CHANCE = math.log(16)  # nats a token of somebody who knows only which 16 symbols there are
PLACES: dict[str, dict[str, Any]] = {
    "post-norm": {"norm_first": False},
    "pre-norm": {"norm_first": True},
    "sandwich": {"norm_first": True, "sandwich_norm": True},
}
Norms = dict[str, dict[int, list[list[float]]]]
"""place -> depth -> a row for every seed: the norm of the gradient of each decoder layer, from first to last."""


@LAB.register("prenorm")
def prenorm(bench: Bench) -> Result:
    """Pre-norm, post-norm and sandwich: gradients by layer at the start, and who learns without warm-up."""
    depths = bench.size([2, 4, 6, 12], [2, 3])
    norms: Norms = {
        name: {depth: [gradients(depth, seed, place) for seed in bench.seeds(8)] for depth in depths}
        for name, place in PLACES.items()
    }
    bench.say("gradients measured; now trainings with and without warm-up")
    steps = bench.size(150, 4)
    trained = {depth: trainings(bench, depth, steps) for depth in bench.size((2, 6), (2,))}
    deepest, deep = depths[-1], trained[max(trained)]
    at = f"{max(trained)}+{max(trained)} layers"
    growth = {name: [row[-1] / row[0] for row in by_depth[deepest]] for name, by_depth in norms.items()}
    slope = {name: slopes(by_depth) for name, by_depth in norms.items()}
    loss = {key: [run.loss for run in runs] for key, runs in deep.items()}

    claims = [
        Claim(
            "At the start, post-norm's gradients are large near the output and grow toward it.",
            f"{XIONG}, figure 3 and theorem 1",
            f"Gradient of the last decoder layer over that of the first, {deepest} layers: "
            f"{said(growth['post-norm'])}.",
            above(growth["post-norm"], 1.0),
        ),
        Claim(
            "Pre-norm's gradients are about equal in all layers.",
            f"{XIONG}, figure 3",
            f"The same ratio: {said(growth['pre-norm'])} (about equal: within a factor of 2).",
            within([math.log2(g) for g in growth["pre-norm"]], 0.0, 1.0),
        ),
        Claim(
            "Near the output, pre-norm's gradient falls with depth as 1/sqrt(L).",
            f"{XIONG}, theorem 1: O(d sqrt(ln d / L))",
            f"Exponent of L for the last decoder layer: {said(slope['pre-norm'])} (wanted -0.5 ± 0.2).",
            within(slope["pre-norm"], -0.5, 0.2),
        ),
        Claim(
            "Near the output, post-norm's gradient does not depend on depth.",
            f"{XIONG}, theorem 1: O(d sqrt(ln d))",
            f"Exponent of L for the last decoder layer: {said(slope['post-norm'])} (wanted 0 ± 0.2).",
            within(slope["post-norm"], 0.0, 0.2),
        ),
        Claim(
            "Post-norm needs warm-up: without it, it learns worse or not at all.",
            f"{XIONG}, section 3.2; Vaswani et al., 2017, warm up over 4,000 steps",
            f"{at}, {steps} steps: loss {said(loss['post-norm', False])} without and "
            f"{said(loss['post-norm', True])} with warm-up; chance is {CHANCE:.2f}.",
            less(loss["post-norm", True], loss["post-norm", False]),
        ),
        Claim(
            "Pre-norm learns without warm-up.",
            f"{XIONG}, section 4",
            f"{at}: loss {said(loss['pre-norm', False])} without warm-up; half of chance is {CHANCE / 2:.2f}.",
            learned(loss["pre-norm", False]),
        ),
        Claim(
            "Warm-up makes no difference to pre-norm.",
            f"{XIONG}, section 4: it can be removed",
            f"{at}: loss {said(loss['pre-norm', False])} without and {said(loss['pre-norm', True])} with warm-up "
            "(no difference: within 0.1).",
            alike(loss["pre-norm", False], loss["pre-norm", True], 0.1),
        ),
        Claim(
            "Without warm-up pre-norm learns faster than post-norm with it.",
            f"{XIONG}, section 4",
            f"{at}: loss {said(loss['pre-norm', False])} against {said(loss['post-norm', True])} after {steps} steps.",
            less(loss["pre-norm", False], loss["post-norm", True]),
        ),
        Claim(
            "A second norm on the sub-layer's output keeps pre-norm's trainability without warm-up.",
            "Ding et al., 2021 (CogView), section 2.4: sandwich-LN",
            f"{at}: loss {said(loss['sandwich', False])} against {said(loss['pre-norm', False])} of pre-norm, "
            "both without warm-up (kept: no more than 0.1 worse).",
            less(loss["sandwich", False], loss["pre-norm", False], -0.1),
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        Plot(
            f"Gradient norm by decoder layer at the start, {deepest} layers",
            "layer",
            [Curve(name, by_layer(by_depth[deepest])) for name, by_depth in norms.items()],
            "Of all weights of a layer, mean over seeds. The first layer is next to the input, the last to the output.",
        ),
        Plot(
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
            Plot(
                f"Training loss, {depth}+{depth} layers (first seed)",
                "step",
                first_curves({label(*key): runs for key, runs in cells.items()}),
                f"Chance is {CHANCE:.2f}.",
                from_zero=True,
            )
        )
        figures.append(
            Dots(
                f"Held-out loss, {depth}+{depth} layers",
                "nats a token",
                {label(*key): [run.loss for run in runs] for key, runs in cells.items()},
                SEEDS,
            )
        )
    figures.append(
        Table(
            "All numbers",
            ("design", *(f"loss, {depth}+{depth} layers" for depth in trained)),
            [
                (
                    label(*key),
                    *(said([run.loss for run in cells[key]]) for cells in trained.values()),
                )
                for key in deep
            ],
        )
    )
    return Result(
        "Where the norm stands",
        "The original Transformer normalises after each residual addition, N(x + F(x)), and needs a warm-up of the "
        "learning rate. Later ones normalise before the sub-layer, x + F(N(x)). The explanation offered is the size of "
        "the gradients at the start.",
        claims,
        figures,
        f"Gradients: of the mean cross-entropy of one batch of a copying task, for fresh Xavier weights, "
        f"{len(bench.seeds(8))} seeds, d_model 64, as many encoder as decoder layers. The exponent of L is the slope of log "
        f"norm over log L.\n\nTrainings: copying 12 of 16 symbols, {steps} steps of 32 rows at a constant rate of 2e-3, "
        f"after a linear warm-up over 40 % of the steps where there is one, no clipping; {len(bench.seeds(3))} seeds, "
        "which share weights and data between designs.",
    )


def gradients(depth: int, seed: int, place: dict[str, Any]) -> list[float]:
    """Norm of the gradient of each decoder layer of a fresh model."""
    model = build(design(PROBLEM, n_layers=depth, **place), seed).train()
    batch = PROBLEM.batch(seed, 0)
    loss = cross_entropy(model.features(batch.source, batch.target), model.head, batch.labels)
    (loss.total / loss.count).backward()
    squares = (
        sum(float(p.grad.square().sum()) for p in layer.parameters() if p.grad is not None)
        for layer in model.decoder.layers
    )
    return [math.sqrt(square) for square in squares]


def slopes(by_depth: dict[int, list[list[float]]]) -> list[float]:
    """The exponent of L in the gradient of the last layer, for each seed: least squares in logarithms."""
    xs = [math.log(depth) for depth in by_depth]
    seeds = range(len(next(iter(by_depth.values()))))
    return [
        statistics.linear_regression(xs, [math.log(rows[seed][-1]) for rows in by_depth.values()]).slope
        for seed in seeds
    ]


def by_layer(rows: list[list[float]]) -> list[tuple[float, float]]:
    """(layer from 1, mean norm)."""
    return [(i + 1, statistics.mean(values)) for i, values in enumerate(zip(*rows, strict=True))]


def trainings(bench: Bench, depth: int, steps: int) -> dict[tuple[str, bool], list[Learned]]:
    """Every place of the norm, without and with warm-up, a run a seed."""
    cells: dict[tuple[str, bool], list[Learned]] = {}
    for seed in bench.seeds(3):
        for name, place in PLACES.items():
            for warm in (False, True) if name != "sandwich" else (False,):
                run = learn(
                    design(PROBLEM, n_layers=depth, **place),
                    sized(bench, PROBLEM),
                    seed=seed,
                    steps=steps,
                    warmup=round(0.4 * steps) if warm else 0,
                    schedule="constant",
                    clip_norm=0.0,
                )
                bench.say(f"{depth} layers, seed {seed}, {label(name, warm)}: loss {run.loss:.3f}")
                cells.setdefault((name, warm), []).append(run)
    return cells


def label(name: str, warm: bool) -> str:
    """A design as the reader knows it."""
    return f"{name}, {'warm-up' if warm else 'no warm-up'}"


def learned(losses: list[float]) -> bool | None:
    """Whether a design got below half of chance."""
    return below(losses, CHANCE / 2) if all(map(math.isfinite, losses)) else False
