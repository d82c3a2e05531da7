"""Why attention divides by sqrt(d_k)."""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor

from polyhead import Choice, build
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
    SeedValues,
)
from polyhead_lab.short_training import (
    collect_losses,
    make_recall_task,
    make_small_config,
    pick_model_size,
    train_designs,
)
from polyhead_lab.statistics import (
    format_mean,
    mean_interval,
    verdict_all,
    verdict_below,
    verdict_less,
    verdict_within,
)

VASWANI = "Vaswani et al., 2017, section 3.2.1"
N_KEYS = 64  # keys per query
_WITH_SCALE, _WITHOUT_SCALE = "with 1/sqrt(d_k)", "without scale"
_N_GROUPS = 20  # repetitions, for the intervals


@EXPERIMENTS.register("scaling")
def measure_scaling(lab: LabContext) -> ExperimentResult:
    """Var(q.k) = d_k without the scale 1/sqrt(d_k), 1 with it; and the effect on softmax and on training."""
    widths = lab.pick_size([4, 8, 16, 32, 64, 128, 256, 512, 1024], [4, 64])
    torch.manual_seed(lab.seed)
    variances = {d: measure_variance(d, lab.pick_size(20_000, 2_000)) for d in widths}
    rows = lab.pick_size(4_000, 400)
    plain = {d: measure_saturation(d, 1.0, rows) for d in widths}
    scaled = {d: measure_saturation(d, d**-0.5, rows) for d in widths}
    last = widths[-1]
    model_ratios = measure_model_variance(lab)
    lab.info("variance and saturation measured; now training with and without the scale")
    steps = lab.pick_size(200, 4)
    losses = train_scales(lab, steps)

    both = ((_WITHOUT_SCALE, plain), (_WITH_SCALE, scaled))
    ratio = {d: mean_interval([v / d for v in variances[d]]) for d in widths}
    claims = [
        Claim(
            "If the components of q and k are independent with mean 0 and variance 1, q.k has mean 0 and "
            "variance d_k.",
            f"{VASWANI}, footnote 4",
            f"Var(q.k) / d_k between {min(r.mean for r in ratio.values()):.3f} and "
            f"{max(r.mean for r in ratio.values()):.3f} for d_k from {widths[0]} to {last}.",
            verdict_all(verdict_within([v / d for v in variances[d]], 1.0, 0.03) for d in widths),
        ),
        Claim(
            "Divided by sqrt(d_k) the variance is 1, whatever d_k.",
            VASWANI,
            f"At d_k = {last}: Var(q.k / sqrt(d_k)) = {ratio[last].to_text()}.",
            verdict_all(verdict_within([v / d for v in variances[d]], 1.0, 0.03) for d in widths),
        ),
        Claim(
            "A newly initialised Transformer is close to that assumption.",
            "assumed in footnote 4, not shown there",
            f"Var(q.k) / d_k over the layers of {len(model_ratios)} Xavier-initialised pre-norm models: "
            f"{format_mean(model_ratios)}.",
            verdict_within(model_ratios, 1.0, 0.2),
        ),
        Claim(
            "Without the scale, large d_k push the softmax into regions with extremely small gradients.",
            VASWANI,
            f"At d_k = {last} the largest of {N_KEYS} weights is {plain[last].peak:.3f} without the scale "
            f"and {scaled[last].peak:.3f} with it; the median norm of the softmax's Jacobian "
            f"{plain[last].slope:.2g} and {scaled[last].slope:.2g}. At d_k = {widths[0]}: "
            f"{plain[widths[0]].slope:.2g} and {scaled[widths[0]].slope:.2g}.",
            verdict_below(plain[last].slopes, scaled[last].slope / 10),
        ),
        Claim(
            "With the scale, saturation does not depend on d_k.",
            f"follows from {VASWANI}",
            "Entropy of the weights with the scale, as a fraction of log N: between "
            f"{min(s.entropy for s in scaled.values()):.3f} and "
            f"{max(s.entropy for s in scaled.values()):.3f}; without it, it falls from "
            f"{plain[widths[0]].entropy:.3f} to {plain[last].entropy:.3f}.",
            verdict_all(
                verdict_within(scaled[d].entropies, scaled[last].entropy, 0.03) for d in widths if d >= 16
            ),
        ),
        Claim(
            "One head of d_k = 128 learns better with the scale than without.",
            f"suspected in {VASWANI}: dot products without it are outperformed by additive attention",
            f"Loss after {steps} steps of a recall task: {format_mean(losses[_WITH_SCALE])} with the scale, "
            f"{format_mean(losses[_WITHOUT_SCALE])} without it ({len(losses[_WITHOUT_SCALE])} seeds).",
            verdict_less(losses[_WITH_SCALE], losses[_WITHOUT_SCALE]),
            TOY,
        ),
    ]
    figures: list[Figure] = [
        LinePlot(
            "Variance of q.k",
            "d_k",
            {_WITHOUT_SCALE: [(d, statistics.fmean(variances[d])) for d in widths],
_WITH_SCALE: [(d, ratio[d].mean) for d in widths]},
            "q and k of independent standard normal components. The variance is d_k, and dividing by "
            "sqrt(d_k) makes it 1.",
            log=True,
        ),
        LinePlot(
            f"Largest of {N_KEYS} weights",
            "d_k",
            {name: [(d, s.peak) for d, s in of.items()] for name, of in both},
            "1 means that softmax selects a single key: it no longer mixes, and no longer learns.",
            log=True,
            from_zero=True,
        ),
        LinePlot(
            "Norm of the softmax's Jacobian (median)",
            "d_k",
            {name: [(d, s.slope) for d, s in of.items()] for name, of in both},
            "Change of the weights with the scores. Where it is near 0, no gradient passes through the "
            "softmax.",
            log=True,
        ),
        DotPlot(
            "One head, d_k = 128: loss on a recall task",
            "nats per token, held-out",
            losses,
            SEEDS_NOTE,
        ),
        ResultTable(
            "All numbers",
            ("d_k", "Var(q.k)", "Var(q.k/sqrt(d_k))", "entropy, no scale", "entropy, scale",
                "Jacobian, no scale", "Jacobian, scale"),
            [
                (d, f"{statistics.fmean(variances[d]):.2f}", ratio[d].to_text(), f"{plain[d].entropy:.3f}",
                 f"{scaled[d].entropy:.3f}", f"{plain[d].slope:.2g}", f"{scaled[d].slope:.2g}")
                for d in widths
            ],
            "Entropy as a share of log N: 1 attends to all keys equally, 0 to one of them.",
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "Why attention divides by sqrt(d_k)",
        "A query scores a key by their dot product, a sum of d_k terms. The more terms, the larger the sum, "
        "until the softmax over the scores selects a single "
        "key. Dividing by sqrt(d_k) is claimed to prevent that.",
        claims,
        figures,
        f"{_N_GROUPS} groups of {lab.pick_size(20_000, 2_000):,} pairs of standard normal vectors for each "
        f"d_k; intervals are Student's t over the groups. Saturation: {rows:,} queries over {N_KEYS} keys "
        "each. The Jacobian of softmax p is diag(p) - p p^T; its Frobenius norm is given.\n\nTrainings: an "
        f"encoder-decoder with one head in every attention, d_model 128, 1+1 layers, {steps} steps; the two "
        "designs differ only in the option scale of softmax attention, and share seeds and data.",
    )


def measure_variance(d_k: int, pairs: int) -> list[float]:
    """Mean square of q.k in every group, which is its variance since the mean is 0."""
    return [
        float((torch.randn(pairs, d_k) * torch.randn(pairs, d_k)).sum(-1).square().mean())
        for _ in range(_N_GROUPS)
    ]


class Saturation:
    """Saturation of a softmax over random scores, group by group.

    ``entropies`` are shares of log N, ``slopes`` median norms of the Jacobian, ``peak`` is the mean largest
    weight.
    """

    def __init__(self, weights: Tensor) -> None:
        groups = weights.double().chunk(_N_GROUPS)
        self.entropies = [
            float((-w * w.clamp(min=1e-300).log()).sum(-1).mean()) / math.log(N_KEYS) for w in groups
        ]
        self.slopes = [float(jacobian_norm(w).median()) for w in groups]
        self.entropy, self.slope = statistics.mean(self.entropies), statistics.median(self.slopes)
        self.peak = float(weights.amax(-1).mean())


def measure_saturation(d_k: int, scale: float, rows: int) -> Saturation:
    """Saturation of the softmax of (q.k) scale, over independent random keys for each query."""
    parts = (
        torch.randn(_N_GROUPS, 1, d_k) @ torch.randn(_N_GROUPS, d_k, N_KEYS) for _ in range(rows // _N_GROUPS)
    )
    return Saturation(torch.cat([(scores.double() * scale).softmax(-1)[:, 0] for scores in parts]))


def jacobian_norm(weights: Tensor) -> Tensor:
    """Frobenius norm of diag(p) - p p^T, the derivative of softmax by its scores: (R, N) -> (R,)."""
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    return torch.linalg.matrix_norm(jacobian)


@torch.inference_mode()
def measure_model_variance(lab: LabContext) -> list[float]:
    """Var(q.k) / d_k over all encoder layers of freshly initialised models, one value per model."""
    problem = make_recall_task()
    ratios = []
    for seed in lab.make_seeds(10):
        model = build(
            make_small_config(problem, d_model=128, n_heads=2, d_ff=256, n_layers=lab.pick_size(4, 1)), seed
        ).eval()
        outputs: list[Tensor] = []  # q and k of every layer, alternating
        for layer in range(len(model.encoder.layers)):
            for name in ("q_proj", "k_proj"):
                part = model.get_submodule(f"encoder.layers.{layer}.attn.{name}")
                part.register_forward_hook(lambda *call, outputs=outputs: outputs.append(call[-1]))
        model.encode(problem.batch(seed, 0).source)
        shares = []
        for q, k in zip(outputs[::2], outputs[1::2], strict=True):
            q, k = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (q, k))
            shares.append(float((q @ k.mT).var()) / q.size(-1))
        ratios.append(statistics.mean(shares))
    return ratios


def train_scales(lab: LabContext, steps: int) -> SeedValues:
    """Losses of one wide head with and without the scale, one value per seed."""
    problem, size = make_recall_task(), pick_model_size(lab, 128)
    designs = {
        name: make_small_config(
            problem, n_heads=1, n_layers=1, attention=Choice("softmax", scale=scale), **size
        )
        for name, scale in ((_WITH_SCALE, None), (_WITHOUT_SCALE, 1.0))
    }
    return collect_losses(train_designs(lab, problem, designs, steps=steps, lr=3e-3))
