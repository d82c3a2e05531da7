"""Normalization over a token's features, or over a feature of all tokens of the batch."""

from __future__ import annotations

from typing import Any

import torch

from polyhead import build
from polyhead.nn.loss import IGNORE_INDEX
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import Claim, DotPlot, ExperimentResult, Figure, ResultTable
from polyhead_lab.short_training import (
    collect_losses,
    format_by_task,
    make_small_config,
    plot_loss_curves,
    plot_losses,
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
    verdict_all,
    verdict_below,
    verdict_less,
    verdict_same,
)
from polyhead_lab.tasks import PAD, START, make_copy_task

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
    step_times = time_steps(lab)
    medians = median_times(step_times)
    cost = {norm: time_ratios(step_times[norm], step_times["layernorm"]) for norm in _NORMS}
    with_pos, without_pos = measure_padding_effect(lab, True), measure_padding_effect(lab, False)

    claims = [
        Claim(
            "RMSNorm reaches the loss of LayerNorm: centring does not help.",
            "Zhang & Sennrich, 2019, section 5",
            f"{format_by_task(loss, 'rmsnorm', 'layernorm')} (the same: within {_SAME_MARGIN} nats).",
            verdict_all(verdict_same(of["rmsnorm"], of["layernorm"], _SAME_MARGIN) for of in loss.values()),
        ),
        Claim(
            "RMSNorm is faster than LayerNorm.",
            "Zhang & Sennrich, 2019, section 5: 7 to 64 % of a step",
            f"A full training step takes {format_mean(cost['rmsnorm'])} times as long as with LayerNorm.",
            verdict_below(cost["rmsnorm"], 1.0),
        ),
        Claim(
            "BatchNorm is worse than LayerNorm in a Transformer.",
            "Shen et al., 2020 (PowerNorm), table 1",
            f"{format_by_task(loss, 'batchnorm', 'layernorm')}.",
            verdict_by_task(loss, "layernorm", "batchnorm"),
        ),
        Claim(
            "BatchNorm is worse in evaluation, with running statistics, than in training.",
            "Shen et al., 2020, section 3",
            "Held-out minus training loss: "
            f"{format_by_task(gap, 'batchnorm', 'layernorm', 'batchnorm {}, layernorm {}')}.",
            verdict_by_task(gap, "layernorm", "batchnorm"),
        ),
        Claim(
            "Without a norm a Transformer trains worse or not at all.",
            "Vaswani et al., 2017, section 3.1, uses one in every residual; Xiong et al., 2020",
            f"{format_by_task(loss, 'none', 'layernorm')}.",
            verdict_by_task(loss, "layernorm", "none"),
        ),
        Claim(
            "Without a norm a deeper Transformer trains worse or not at all.",
            "Xiong et al., 2020; Zhang et al., 2019 (Fixup), for the opposite, with a special initialisation",
            f"{_DEEP_LAYERS}+{_DEEP_LAYERS} layers: {format_mean(deep['none'])} against "
            f"{format_mean(deep['layernorm'])}.",
            verdict_less(deep["layernorm"], deep["none"]),
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


def train_deep_models(lab: LabContext) -> dict[str, list[float]]:
    """Losses of a deep model with and without a norm."""
    problem = _FULL_TASK._replace(rows=32)
    designs = {
        norm: make_small_config(problem, norm=norm, n_layers=lab.pick_size(_DEEP_LAYERS, 2))
        for norm in ("layernorm", "none")
    }
    status = f"{_DEEP_LAYERS} layers, seed {{seed}}, {{name}}: loss {{run.loss:.3f}}"
    steps = lab.pick_size(150, 4)
    return collect_losses(train_designs(lab, problem, designs, steps=steps, lr=2e-3, status_format=status))


def time_steps(lab: LabContext) -> dict[str, list[float]]:
    """Seconds of a forward and backward pass with each norm, interleaved."""
    problem = shrink_if_quick(lab, _FULL_TASK)
    size: dict[str, Any] = lab.pick_size({"d_model": 128, "d_ff": 256}, {"d_model": 16, "d_ff": 16})
    designs = {norm: make_small_config(problem, norm=norm, **size) for norm in _NORMS}
    return time_training_steps(lab, designs, problem.batch(lab.seed, 0), lab.pick_size(15, 3))


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
