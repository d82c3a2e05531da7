"""Normalization: over a token's features or over all tokens, and before or after the sub-layer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import torch

from polyhead import build
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab.registry import (
    EXPERIMENTS,
    TOY,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ResultTable,
    SeedValues,
)
from polyhead_lab.short_training import (
    PAD,
    START,
    SyntheticTask,
    TrainingResult,
    collect_losses,
    compute_loss,
    format_by_task,
    make_copy_task,
    make_small_config,
    pick_model_size,
    plot_loss_curves,
    plot_losses,
    run_short_training,
    shrink_if_quick,
    time_training_steps,
    train_by_task,
    train_designs,
    verdict_by_task,
)
from polyhead_lab.statistics import (
    format_mean,
    median_times,
    time_ratios,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
    verdict_same,
    verdict_within,
)

_NORMS = ("layernorm", "rmsnorm", "batchnorm", "none")
_FULL_TASK, _PADDED_TASK, _TRAIN_STEPS = make_copy_task(), make_copy_task(shortest=2), 200
_TASKS = {"full rows": (_FULL_TASK, _TRAIN_STEPS), "much padding": (_PADDED_TASK, _TRAIN_STEPS)}
_DEEP_LAYERS = 6  # layers of encoder and decoder each
_SAME_MARGIN = 0.1  # difference in nats per token that counts as none
_ROUNDING = 1e-4  # difference of features that counts as none


@EXPERIMENTS.register("norms")
def measure_norms(lab: LabContext) -> ExperimentResult:
    """LayerNorm, RMSNorm, BatchNorm and none: loss, cost, and whether padding matters."""
    runs = train_by_task(lab, _TASKS, {norm: {"norm": norm} for norm in _NORMS})
    loss = runs.loss
    gap = {
        name: {norm: [r.loss - r.training_loss for r in rs] for norm, rs in cells.items()}
        for name, cells in runs.items()
    }
    deep = train_deep_models(lab)
    problem = shrink_if_quick(lab, _FULL_TASK)
    size = pick_model_size(lab)
    designs = {norm: make_small_config(problem, norm=norm, **size) for norm in _NORMS}
    step_times = time_training_steps(lab, designs, problem.batch(lab.seed, 0), lab.pick_size(15, 3))
    medians = median_times(step_times)
    cost = {norm: time_ratios(step_times[norm], step_times["layernorm"]) for norm in _NORMS}
    with_pos, without_pos = measure_padding_effect(lab, True), measure_padding_effect(lab, False)

    claims = [
        Claim(
            "RMSNorm reaches the loss of LayerNorm: centring does not help.",
            "Zhang & Sennrich, 2019, section 5",
            f"{format_by_task(loss, 'rmsnorm', 'layernorm')} (the same: within {_SAME_MARGIN} nats).",
            verdict_all(verdict_same(of["rmsnorm"], of["layernorm"], _SAME_MARGIN) for of in loss.values()),
            TOY,
        ),
        Claim(
            "RMSNorm is faster than LayerNorm.",
            "Zhang & Sennrich, 2019, section 5: 7 to 64 % of a step",
            f"A full training step takes {format_mean(cost['rmsnorm'])} times as long as with LayerNorm.",
            verdict_below(cost["rmsnorm"], 1.0),
        ),
        Claim(
            "BatchNorm is computed faster than LayerNorm.",
            "stated for prediction, where its statistics are constants; here in training",
            f"A full training step takes {format_mean(cost['batchnorm'])} times as long as with LayerNorm.",
            verdict_below(cost["batchnorm"], 1.0),
        ),
        Claim(
            "BatchNorm is worse than LayerNorm in a Transformer.",
            "Shen et al., 2020 (PowerNorm), table 1",
            f"{format_by_task(loss, 'batchnorm', 'layernorm')}.",
            verdict_by_task(loss, "layernorm", "batchnorm"), TOY,
        ),
        Claim(
            "BatchNorm is worse in evaluation, with running statistics, than in training.",
            "Shen et al., 2020, section 3",
            "Held-out minus training loss: "
            f"{format_by_task(gap, 'batchnorm', 'layernorm', 'batchnorm {}, layernorm {}')}.",
            verdict_by_task(gap, "layernorm", "batchnorm"), TOY,
        ),
        Claim(
            "Without a norm a Transformer trains worse or not at all.",
            "Vaswani et al., 2017, section 3.1, uses one in every residual; Xiong et al., 2020",
            f"{format_by_task(loss, 'none', 'layernorm')}.",
            verdict_by_task(loss, "layernorm", "none"), TOY,
        ),
        Claim(
            "Without a norm a deeper Transformer trains worse or not at all.",
            "Xiong et al., 2020; Zhang et al., 2019 (Fixup), for the opposite, with a special initialisation",
            f"{_DEEP_LAYERS}+{_DEEP_LAYERS} layers: {format_mean(deep['none'])} against "
            f"{format_mean(deep['layernorm'])}.",
            verdict_less(deep["layernorm"], deep["none"]), TOY,
        ),
        Claim(
            "BatchNorm over valid tokens does not depend on the amount of padding.",
            "the definition: statistics of valid tokens only",
            "Four times the width in padding changes the features of training mode by at most "
            f"{with_pos:.2g}; if padding counted as tokens, by up to {without_pos:.2g}.",
            with_pos < _ROUNDING,
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        *(plot_losses(name, losses) for name, losses in loss.items()),
        DotPlot(f"Held-out loss, full rows, {_DEEP_LAYERS}+{_DEEP_LAYERS} layers", "nats per token", deep),
        *(plot_loss_curves(name, cells) for name, cells in runs.items()),
        DotPlot("A training step", "milliseconds",
            {norm: [1e3 * t for t in step_times[norm]] for norm in _NORMS},
             "One small dot per round; the norms alternated."),
        ResultTable(
            "All numbers",
            ("norm", *(f"loss, {name}" for name in _TASKS),
                *(f"held-out minus training, {name}" for name in _TASKS),
             "ms per step", "times LayerNorm"),
            [
                (norm, *(format_mean(loss[name][norm]) for name in _TASKS),
                    *(format_mean(gap[name][norm]) for name in _TASKS),
                 f"{1e3 * medians[norm]:.2f}", format_mean(cost[norm]))
                for norm in _NORMS
            ],
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "Which norm",
        "A norm limits the size of activations. LayerNorm and RMSNorm use one token. BatchNorm uses one "
        "feature "
        "of all tokens of the batch, so it must exclude padding and needs other statistics at inference.",
        claims,
        figures,
        "Encoder-decoders of 2+2 layers, d_model 64, pre-norm, copying 12 tokens (much padding: rows of 2 "
        f"to 12, on average 42 % of a batch is padding); {lab.pick_size(_TRAIN_STEPS, 4)} steps of 64 rows, "
        f"cosine, {len(lab.make_seeds(3))} seeds. BatchNorm uses statistics of valid tokens. Training loss "
        "is that of the last steps. The deep models: 150 steps of 32 rows, peak rate 2e-3 instead of "
        "5e-3.\n\nTime: forward and backward pass of 64 rows of 12 + 12 tokens, d_model "
        f"{lab.pick_size(128, 16)}.",
    )


def train_deep_models(lab: LabContext) -> SeedValues:
    """Losses of a deep model with and without a norm."""
    problem = _FULL_TASK._replace(rows=32)
    designs = {
        norm: make_small_config(problem, norm=norm, n_layers=lab.pick_size(_DEEP_LAYERS, 2))
        for norm in ("layernorm", "none")
    }
    status = f"{_DEEP_LAYERS} layers, seed {{seed}}, {{name}}: loss {{run.loss:.3f}}"
    steps = lab.pick_size(150, 4)
    return collect_losses(train_designs(lab, problem, designs, steps=steps, lr=2e-3, status_format=status))


@torch.no_grad()
def measure_padding_effect(lab: LabContext, with_positions: bool) -> float:
    """Largest change of a valid token's features in training mode if 3 x the width is added as padding.

    ``with_positions``: the model gets positions that mark padding; otherwise padding counts as tokens.
    """
    problem = shrink_if_quick(lab, _PADDED_TASK)
    config = make_small_config(problem, norm="batchnorm", max_len=64)
    batch = problem.batch(lab.seed, 0)
    rows, width = batch.target.shape
    extra = torch.full((rows, 3 * width), PAD)
    source, target = torch.cat([batch.source, extra], 1), torch.cat([batch.target, extra + START], 1)
    assert batch.source_pos is not None, "rows of different lengths, with padding"
    source_pos = torch.cat([batch.source_pos, extra - 1], 1)
    target_pos = torch.cat([batch.target_pos, extra - 1], 1)
    valid = batch.labels != IGNORE_INDEX
    features = []
    for s, t, s_pos, t_pos in (
        (batch.source, batch.target, source_pos[:, :width], target_pos[:, :width]),
        (source, target, source_pos, target_pos),
    ):
        # rebuilt, because training mode updates the running statistics
        model = build(config, lab.seed).train()
        model.double()
        x = model.features(s, t, s_pos if with_positions else None, t_pos if with_positions else None)
        features.append(x[:, :width][valid])
    return float((features[0] - features[1]).abs().max())


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
            verdict_above(growth["post-norm"], 1.0), TOY,
        ),
        Claim(
            "Pre-norm's gradients are about equal in all layers.",
            f"{XIONG}, figure 3",
            f"The same ratio: {format_mean(growth['pre-norm'])} (about equal: within a factor of 2).",
            verdict_within([math.log2(g) for g in growth["pre-norm"]], 0.0, 1.0), TOY,
        ),
        Claim(
            "Near the output, pre-norm's gradient falls with depth as 1/sqrt(L).",
            f"{XIONG}, theorem 1: O(d sqrt(ln d / L))",
            f"Exponent of L for the last decoder layer: {format_mean(slope['pre-norm'])} (target: -0.5 ± "
            "0.2).",
            verdict_within(slope["pre-norm"], -0.5, 0.2), TOY,
        ),
        Claim(
            "Near the output, post-norm's gradient does not depend on depth.",
            f"{XIONG}, theorem 1: O(d sqrt(ln d))",
            f"Exponent of L for the last decoder layer: {format_mean(slope['post-norm'])} (target: 0 ± 0.2).",
            verdict_within(slope["post-norm"], 0.0, 0.2), TOY,
        ),
        Claim(
            "Post-norm requires warm-up: without it, it trains worse or not at all.",
            f"{XIONG}, section 3.2; Vaswani et al., 2017, warm up over 4,000 steps",
            f"{at}, {steps} steps: loss {post} without and {post_warm} with warm-up; chance is "
            f"{_CHANCE_LOSS:.2f}.",
            verdict_less(loss[_POST_WARM], loss[_POST]), TOY,
        ),
        Claim(
            "Pre-norm trains without warm-up.",
            f"{XIONG}, section 4",
            f"{at}: loss {pre} without warm-up; half of chance is {_CHANCE_LOSS / 2:.2f}.",
            verdict_below(loss[_PRE], _CHANCE_LOSS / 2) if all(map(math.isfinite, loss[_PRE])) else False,
            TOY,
        ),
        Claim(
            "Warm-up makes no difference to pre-norm.",
            f"{XIONG}, section 4: it can be removed",
            f"{at}: loss {pre} without and {pre_warm} with warm-up (no difference: within 0.1).",
            verdict_same(loss[_PRE], loss[_PRE_WARM], 0.1), TOY,
        ),
        Claim(
            "Without warm-up pre-norm learns faster than post-norm with it.",
            f"{XIONG}, section 4",
            f"{at}: loss {pre} against {post_warm} after {steps} steps.",
            verdict_less(loss[_PRE], loss[_POST_WARM]), TOY,
        ),
        Claim(
            "With a second norm on the sub-layer output pre-norm still trains without warm-up.",
            "Ding et al., 2021 (CogView), section 2.4: sandwich-LN",
            f"{at}: loss {sandwich} against {pre} of pre-norm, both without warm-up (preserved: at most 0.1 "
            "worse).",
            verdict_less(loss[_SANDWICH], loss[_PRE], -0.1), TOY,
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        LinePlot(
            f"Gradient norm by decoder layer at the start, {deepest} layers",
            "layer",
            {
                name: list(enumerate(map(statistics.mean, zip(*by_depth[deepest], strict=True)), 1))
                for name, by_depth in norms.items()
            },
            "Of all weights of a layer, mean over seeds. The first layer is next to the input, the last to "
            "the output.",
        ),
        LinePlot(
            "Gradient norm of the last decoder layer at the start",
            "layers L",
            {
                name: [(d, statistics.mean(row[-1] for row in rows)) for d, rows in by_depth.items()]
                for name, by_depth in norms.items()
            },
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


def measure_gradients(
    depth: int, seed: int, changes: Mapping[str, Any], problem: SyntheticTask = COPY_TASK
) -> list[float]:
    """Gradient norm of each decoder layer of a freshly initialised model."""
    model = build(make_small_config(problem, n_layers=depth, **changes), seed).train()
    loss = compute_loss(model, problem.batch(seed, 0))
    (loss.total / loss.count).backward()
    squares = (
        sum(float(p.grad.square().sum()) for p in layer.parameters() if p.grad is not None)
        for layer in (model.stack if problem.kind == "decoder" else model.decoder).layers
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
