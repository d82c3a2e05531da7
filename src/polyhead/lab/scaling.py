"""Why attention divides by sqrt(d_k)."""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor, nn

from polyhead.analysis.charts import Curve
from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.learn import design, learn, sized
from polyhead.lab.result import SEEDS, Claim, Dots, Figure, Plot, Result, Table
from polyhead.lab.tasks import recall
from polyhead.lab.verdict import all_of, below, interval, less, said, within
from polyhead.models.build import build
from polyhead.registry import Choice

VASWANI = "Vaswani et al., 2017, section 3.2.1"
KEYS = 64  # that a query chooses from
SCALED, PLAIN = "with 1/sqrt(d_k)", "without scale"
GROUPS = 20  # repetitions, for the spread


@LAB.register("scaling")
def scaling(bench: Bench) -> Result:
    """Var(q.k) = d_k without the scale 1/sqrt(d_k), 1 with it; and what softmax makes of the difference."""
    widths = bench.size([4, 8, 16, 32, 64, 128, 256, 512, 1024], [4, 64])
    torch.manual_seed(bench.seed)
    variances = {d: variance(d, bench.size(20_000, 2_000)) for d in widths}
    rows = bench.size(4_000, 400)
    plain = {d: saturation(d, 1.0, rows) for d in widths}
    scaled = {d: saturation(d, d**-0.5, rows) for d in widths}
    last = widths[-1]
    inside = within_a_model(bench)
    bench.say("variance and saturation measured; now trainings with and without the scale")
    steps = bench.size(200, 4)
    losses = trainings(bench, steps)

    both = ((PLAIN, plain), (SCALED, scaled))
    ratio = {d: interval([v / d for v in variances[d]]) for d in widths}
    claims = [
        Claim(
            "If the components of q and k are independent with mean 0 and variance 1, q.k has mean 0 and variance d_k.",
            f"{VASWANI}, footnote 4",
            f"Var(q.k) / d_k between {min(r.mean for r in ratio.values()):.3f} and "
            f"{max(r.mean for r in ratio.values()):.3f} for d_k from {widths[0]} to {last}.",
            all_of(within([v / d for v in variances[d]], 1.0, 0.03) for d in widths),
        ),
        Claim(
            "Divided by sqrt(d_k) the variance is 1, whatever d_k.",
            VASWANI,
            f"At d_k = {last}: Var(q.k / sqrt(d_k)) = {ratio[last].said()}.",
            all_of(within([v / d for v in variances[d]], 1.0, 0.03) for d in widths),
        ),
        Claim(
            "A freshly initialised Transformer is close to that assumption.",
            "assumed in footnote 4, not shown there",
            f"Var(q.k) / d_k over the layers of {len(inside)} Xavier-initialised pre-norm models: "
            f"{said(inside)}.",
            within(inside, 1.0, 0.2),
        ),
        Claim(
            "Without the scale, large d_k push the softmax into regions with extremely small gradients.",
            VASWANI,
            f"At d_k = {last} the largest of {KEYS} weights is {plain[last].peak:.3f} without the scale and "
            f"{scaled[last].peak:.3f} with it; the median norm of the softmax's Jacobian {plain[last].slope:.2g} and "
            f"{scaled[last].slope:.2g}. At d_k = {widths[0]}: {plain[widths[0]].slope:.2g} and "
            f"{scaled[widths[0]].slope:.2g}.",
            below(plain[last].slopes, scaled[last].slope / 10),
        ),
        Claim(
            "With the scale, saturation does not depend on d_k.",
            f"follows from {VASWANI}",
            "Entropy of the weights with the scale, as a share of log N: between "
            f"{min(s.entropy for s in scaled.values()):.3f} and {max(s.entropy for s in scaled.values()):.3f}; "
            f"without it, it falls from {plain[widths[0]].entropy:.3f} to {plain[last].entropy:.3f}.",
            all_of(within(scaled[d].entropies, scaled[last].entropy, 0.03) for d in widths if d >= 16),
        ),
        Claim(
            "One head of d_k = 128 learns better with the scale than without.",
            f"suspected in {VASWANI}: dot products without it are outperformed by additive attention",
            f"Loss after {steps} steps of a recall task: {said(losses[SCALED])} with the scale, "
            f"{said(losses[PLAIN])} without it ({len(losses[PLAIN])} seeds).",
            less(losses[SCALED], losses[PLAIN]),
        ),
    ]
    figures: list[Figure] = [
        Plot(
            "Variance of q.k",
            "d_k",
            [
                Curve(PLAIN, [(d, statistics.fmean(variances[d])) for d in widths]),
                Curve(SCALED, [(d, ratio[d].mean) for d in widths]),
            ],
            "q and k of independent standard normal components. The variance is d_k, and dividing by sqrt(d_k) makes it 1.",
            log=True,
        ),
        Plot(
            f"Largest of {KEYS} weights",
            "d_k",
            [Curve(name, [(d, s.peak) for d, s in of.items()]) for name, of in both],
            "1 means that softmax has become a choice of one key: it no longer mixes, and no longer learns.",
            log=True,
            from_zero=True,
        ),
        Plot(
            "Norm of the softmax's Jacobian (median)",
            "d_k",
            [Curve(name, [(d, s.slope) for d, s in of.items()]) for name, of in both],
            "How far the weights move when the scores do. Where it is near 0, no gradient comes back through the softmax.",
            log=True,
        ),
        Dots(
            "One head, d_k = 128: loss on a recall task",
            "nats a token, held-out",
            losses,
            SEEDS,
        ),
        Table(
            "All numbers",
            ("d_k", "Var(q.k)", "Var(q.k/sqrt(d_k))", "entropy, no scale", "entropy, scale", "Jacobian, no scale", "Jacobian, scale"),
            [
                (d, f"{statistics.fmean(variances[d]):.2f}", ratio[d].said(), f"{plain[d].entropy:.3f}",
                 f"{scaled[d].entropy:.3f}", f"{plain[d].slope:.2g}", f"{scaled[d].slope:.2g}")
                for d in widths
            ],
            "Entropy as a share of log N: 1 looks at all keys alike, 0 at one of them.",
        ),
    ]  # fmt: skip
    return Result(
        "Why attention divides by sqrt(d_k)",
        "A query scores a key by their dot product, a sum of d_k terms. The more terms, the larger the sum, until the "
        "softmax over the scores sees one winner and nothing else. Dividing by sqrt(d_k) is said to prevent that.",
        claims,
        figures,
        f"{GROUPS} groups of {bench.size(20_000, 2_000):,} pairs of standard normal vectors for each d_k; intervals are "
        f"Student's t over the groups. Saturation: {rows:,} queries over {KEYS} keys each. The Jacobian of softmax p is "
        "diag(p) - p p^T; its Frobenius norm is given.\n\n"
        f"Trainings: an encoder-decoder with one head in every attention, d_model 128, 1+1 layers, {steps} "
        "steps; the two designs differ in the option scale of softmax attention alone and share seeds and data.",
    )


def variance(d_k: int, pairs: int) -> list[float]:
    """Mean square of q.k, whose mean is 0, in every group."""
    return [
        float((torch.randn(pairs, d_k) * torch.randn(pairs, d_k)).sum(-1).square().mean())
        for _ in range(GROUPS)
    ]


class Saturation:
    """How far a softmax over random scores is from mixing, group by group."""

    def __init__(self, weights: Tensor) -> None:
        groups = weights.double().chunk(GROUPS)
        self.entropies = [
            float((-w * w.clamp(min=1e-300).log()).sum(-1).mean()) / math.log(KEYS) for w in groups
        ]
        self.slopes = [float(jacobian_norm(w).median()) for w in groups]
        self.entropy, self.slope = statistics.mean(self.entropies), statistics.median(self.slopes)
        self.peak = float(weights.amax(-1).mean())


def saturation(d_k: int, scale: float, rows: int) -> Saturation:
    """Softmax of (q.k) scale over independent random keys for each query."""
    parts = (torch.randn(GROUPS, 1, d_k) @ torch.randn(GROUPS, d_k, KEYS) for _ in range(rows // GROUPS))
    return Saturation(torch.cat([(scores.double() * scale).softmax(-1)[:, 0] for scores in parts]))


def jacobian_norm(weights: Tensor) -> Tensor:
    """Frobenius norm of diag(p) - p p^T, the derivative of softmax by its scores: (R, N) -> (R,)."""
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    return torch.linalg.matrix_norm(jacobian)


@torch.inference_mode()
def within_a_model(bench: Bench) -> list[float]:
    """Var(q.k) / d_k of all encoder layers of freshly initialised models, a value a model."""
    problem = recall()
    found = []
    for seed in bench.seeds(10):
        model = build(
            design(problem, d_model=128, n_heads=2, d_ff=256, n_layers=bench.size(4, 1)), seed
        ).eval()
        seen: list[Tensor] = []  # q and k of every layer, in turns
        for layer in range(len(model.encoder.layers)):
            for name in ("q_proj", "k_proj"):
                watch(model.get_submodule(f"encoder.layers.{layer}.attn.{name}"), seen)
        model.encode(problem.batch(seed, 0).source)
        shares = []
        for q, k in zip(seen[::2], seen[1::2], strict=True):
            q, k = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (q, k))
            shares.append(float((q @ k.mT).var()) / q.size(-1))
        found.append(statistics.mean(shares))
    return found


def watch(module: nn.Module, seen: list[Tensor]) -> None:
    """Keep what the module puts out."""
    module.register_forward_hook(lambda module, inputs, output: seen.append(output))


def trainings(bench: Bench, steps: int) -> dict[str, list[float]]:
    """Losses of one wide head with and without the scale, a value a seed."""
    problem, losses = sized(bench, recall()), {SCALED: list[float](), PLAIN: list[float]()}
    size = bench.size({"d_model": 128, "d_ff": 128}, {"d_model": 16, "d_ff": 16})
    for seed in bench.seeds(3):
        for name, scale in ((SCALED, None), (PLAIN, 1.0)):
            choice = Choice("softmax", scale=scale)
            config = design(problem, n_heads=1, n_layers=1, attention=choice, **size)
            losses[name].append(learn(config, problem, seed=seed, steps=steps, lr=3e-3).loss)
            bench.say(f"seed {seed}, scale {'none' if scale else '1/sqrt(d_k)'}: loss {losses[name][-1]:.4f}")
    return losses
