"""Claims about parts, sizes and training of Transformers, on natural text and on toy tasks."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, linear_regression, quantiles
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyhead import Choice, build
from polyhead.config.model import AttentionShape
from polyhead.core.array_types import Ints
from polyhead.nn.attention.softmax import Attention
from polyhead.nn.position.base import Position
from polyhead_lab.norms import COPY_TASK, measure_gradients
from polyhead_lab.registry import (
    EXPERIMENTS,
    TEXT,
    TOY,
    Claim,
    ExperimentResult,
    LabContext,
    LinePlot,
    SeedValues,
    mean_curves,
)
from polyhead_lab.short_training import (
    FIRST_HELD_OUT,
    SyntheticTask,
    collect_losses,
    evaluate_held_out,
    make_copy_task,
    make_lookup_task,
    make_recall_task,
    make_small_config,
    plot_loss_curves,
    train_by_task,
    train_designs,
)
from polyhead_lab.statistics import (
    format_mean,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
    verdict_within,
)
from polyhead_lab.text_task import METHOD, make_loss_claims, make_text_task, tabulate

_MARGIN = 0.1  # difference in nats per token that counts
IOFFE, HE, KAPLAN = "Ioffe & Szegedy, 2015", "He et al., 2016", "Kaplan et al., 2020"


_LAYER, _BATCH, _NONE = _NORMS = ("layernorm", "batchnorm", "none")
_USUAL, _FEW_STEPS, _HIGH_RATE = (5e-3, 100), (5e-3, 40), (5e-2, 100)  # rate, steps
_FEW_ROWS, _FEW_BYTES = 2, 8_000  # rows of a small batch; training text so short that models overfit


@EXPERIMENTS.register("batchnorm")
def measure_batch_norm(lab: LabContext) -> ExperimentResult:
    """BatchNorm: learning rates, steps, noise, batch size and overfitting, on text and on a toy task."""
    text, few_bytes = make_text_task(), make_text_task(train_bytes=_FEW_BYTES)
    designs, few_rows = {norm: {"norm": norm} for norm in _NORMS}, text._replace(rows=_FEW_ROWS)
    usual, few_steps, high_rate = (
        train_by_task(lab, {TEXT: (text, n), TOY: (make_copy_task(), n)}, designs, lr=rate)
        for rate, n in (_USUAL, _FEW_STEPS, _HIGH_RATE)
    )
    small, overfit = (
        train_by_task(lab, {TEXT: (task, _USUAL[1])}, designs)[TEXT] for task in (few_rows, few_bytes)
    )
    seen = few_bytes._replace(draw_held_out=few_bytes.draw)
    gap = {
        norm: [run.loss - evaluate_held_out(run.model, seen)["loss"] for run in runs]
        for norm, runs in overfit.items()
    }
    excess = {
        rows: [b - a for a, b in zip(of[_LAYER], of[_BATCH], strict=True)]
        for rows, of in (("16 rows", usual.loss[TEXT]), ("2 rows", collect_losses(small)))
    }
    noise = {
        f"{rows} rows": [measure_noise(text, _BATCH, rows, seed) for seed in lab.make_seeds(5)]
        for rows in (text.rows, _FEW_ROWS)
    }
    claims = [
        *make_loss_claims("BatchNorm allows larger learning rates than no norm.", f"{IOFFE}, section 3.3",
            high_rate.loss, _BATCH, _NONE),
        *make_loss_claims("BatchNorm allows larger learning rates than LayerNorm.",
            f"{IOFFE}, section 3.3, compared with no norm", high_rate.loss, _BATCH, _LAYER),
        *make_loss_claims("BatchNorm learns in fewer steps than no norm.",
            f"{IOFFE}, section 4.2, for images: in a fourteenth", few_steps.loss, _BATCH, _NONE),
        *make_loss_claims("BatchNorm is worse than LayerNorm in a Transformer.",
            "Shen et al., 2020 (PowerNorm), table 1", usual.loss, _LAYER, _BATCH),
        *make_loss_claims("BatchNorm needs large batches: in small ones it loses more against LayerNorm.",
            "Wu & He, 2018 (GroupNorm), figure 1, for images", {TEXT: excess}, "16 rows", "2 rows"),
        *make_loss_claims(
            "Its statistics are noise: a row's output depends on the other rows, less in large batches.",
            f"{IOFFE}, section 3.4", {TEXT: noise}, "16 rows", "2 rows"),
        *make_loss_claims("The noise regularises: BatchNorm overfits less than LayerNorm.",
            f"{IOFFE}, section 3.4; Luo et al., 2019", {TEXT: gap}, _BATCH, _LAYER),
        *make_loss_claims("BatchNorm overfits less than no norm.", f"{IOFFE}, section 3.4", {TEXT: gap},
            _BATCH, _NONE),
    ]  # fmt: skip
    columns = {**usual.loss, "few steps": few_steps.loss[TEXT], "large rate": high_rate.loss[TEXT],
        "2 rows": collect_losses(small), "little text": collect_losses(overfit),
        "held-out minus training": gap}  # fmt: skip
    return ExperimentResult(
        "What batch norm gives",
        "Batch norm made image networks learn faster, at larger rates, and overfit less. Transformers use "
        "layer norm. Which of these effects does batch norm have in a Transformer?",
        claims,
        [plot_loss_curves(TEXT, usual[TEXT]), tabulate(columns)],
        f"{METHOD}Toy task: copying. 100 steps at a rate of 5e-3; few steps: 40; large rate: 5e-2. "
        "Overfitting: held-out minus training loss, both in evaluation, with 8,000 bytes of training text. "
        "Noise: relative change of a row's features in training mode if the other rows change.",
    )


@torch.no_grad()
def measure_noise(problem: SyntheticTask, norm: str, rows: int, seed: int) -> float:
    """Relative change of a row's features in training mode if the other rows of its batch change."""
    model = build(make_small_config(problem, norm=norm), seed).train()
    first, second = (problem.batch(seed, number, rows).target for number in (0, 1))
    second[0] = first[0]
    a, b = (model.features(tokens)[0] for tokens in (first, second))
    return float((a - b).norm() / a.norm())


_NARROW = {"d_model": 32, "d_ff": 64}
_RESIDUALS: dict[str, dict[str, Any]] = {
    "residual": _NARROW,
    "no residual": {**_NARROW, "residual": Choice("none")},
}


@EXPERIMENTS.register("residual")
def measure_residuals(lab: LabContext) -> ExperimentResult:
    """Residual connections: gradients by layer in 2 to 24 layers with and without, and training."""
    (few, many), deepest = lab.pick_size(((2, 12), 24), ((2, 3), 3))
    text, depths = make_text_task(32, 16), (few, many, deepest)
    norms = {
        name: {d: [measure_gradients(d, seed, of, text) for seed in lab.make_seeds(5)] for d in depths}
        for name, of in _RESIDUALS.items()
    }
    decades = {
        f"gradients, {d} layers": {
            name: [math.log10(row[0] / row[-1]) for row in of[d]] for name, of in norms.items()
        }
        for d in depths
    }
    lab.info("gradients measured; now training")
    designs = {
        f"{name}, {d} layers": {**of, "n_layers": d} for name, of in _RESIDUALS.items() for d in (few, many)
    }
    loss = train_by_task(lab, {TEXT: (text, 100), TOY: (COPY_TASK, 100)}, designs, lr=2e-3).loss
    shallow, deep, plain_shallow, plain_deep = designs
    full, cut = decades[f"gradients, {deepest} layers"].values()
    claims = [
        Claim("With residuals the gradient reaches the first layers of a deep stack.",
            f"{HE} (identity mappings), equation 5", f"First over last of {deepest} layers: "
            f"10^({format_mean(full)}) (reaches: at least a tenth).", verdict_above(full, -1.0), TEXT),
        Claim("Without residuals the gradient vanishes on its way to the first layers.",
            f"{HE} (identity mappings), section 3.1, for shortcuts that are scaled down", f"First over last "
            f"of {deepest} layers: 10^({format_mean(cut)}) (vanishes: below a hundredth).",
            verdict_below(cut, -2.0), TEXT),
        *make_loss_claims("A deep stack learns better with residuals than without.",
            f"{HE} (ResNet), section 4.1", loss, deep, plain_deep),
        *make_loss_claims("Without residuals a deep stack learns worse than a shallow one.",
            f"{HE} (ResNet), figure 1", loss, plain_shallow, plain_deep),
        *make_loss_claims("With residuals a deep stack is no worse than a shallow one.",
            f"{HE} (ResNet), section 4.1", loss, deep, shallow, -_MARGIN),
    ]  # fmt: skip
    by_layer = {name: dict(enumerate(zip(*of[deepest], strict=True), 1)) for name, of in norms.items()}
    return ExperimentResult(
        "What residuals carry into depth",
        "A residual connection adds the output of a sub-layer to its input, so every layer has a direct path "
        "to the input and to the loss. What arrives without it?",
        claims,
        [
            LinePlot(f"Gradient norm by layer, {deepest} layers", "layer", mean_curves(by_layer)),
            tabulate(decades, "Gradient of the first layer over the last, log10"),
            tabulate(loss),
        ],
        f"{METHOD}Here d_model is 32, and the text is read in 16 rows of 32 bytes. Toy task: copying, with "
        "as many encoder as decoder layers. 100 steps. Gradients: log10 of the first layer over the last.",
    )


class UnprojectedAttention(Attention):
    """Softmax attention whose queries and keys are the tokens' own features, without projections."""

    def __init__(self, shape: AttentionShape, position: Position) -> None:
        super().__init__(shape, position)
        for name in ("q_proj", "k_proj"):
            setattr(self, name, nn.Identity())


_OWN_SCORES = Choice("polyhead_lab.language:UnprojectedAttention")
_SIMILARITIES: dict[str, dict[str, Any]] = {
    "projections": {},
    "no projections": {"attention": _OWN_SCORES},
    "no projections, wider d_ff": {"attention": _OWN_SCORES, "d_ff": 225},  # no fewer parameters
}


@EXPERIMENTS.register("similarity")
def measure_similarities(lab: LabContext) -> ExperimentResult:
    """Scores of attention with projections of queries and keys and without: is it the parameters?"""
    tasks = {TEXT: (make_text_task(), 100), TOY: (make_recall_task(), 250)}
    runs = train_by_task(lab, tasks, _SIMILARITIES)
    projected, unprojected, wider = _SIMILARITIES
    sizes = {
        name: sum(p.numel() for part, p in seeds[0].model.named_parameters() if ".attn." in part)
        for name, seeds in runs[TEXT].items()
    }
    claims = [
        Claim("Without projections of queries and keys half of the parameters of attention are missing.",
            "by counting", f"{sizes[unprojected]:,} of {sizes[projected]:,} parameters of attention.",
            2 * sizes[unprojected] == sizes[projected]),
        *make_loss_claims("A similarity without projections has too few parameters: it learns worse.",
            "Vaswani et al., 2017, section 3.2.2: projections are beneficial", runs.loss, projected,
            unprojected),
        *make_loss_claims("As many parameters in the feed-forward layers do not replace the projections.",
            "not answered in the literature", runs.loss, projected, wider, _MARGIN),
    ]  # fmt: skip
    parameters = {name: [float(seeds[0].parameters)] for name, seeds in runs[TEXT].items()}
    return ExperimentResult(
        "A similarity without projections",
        "A score is the product of a query and a key, each a learned projection of a token. Without the "
        "projections a token is its own query and key: scores are symmetric, and nothing in them is learned.",
        claims,
        [plot_loss_curves(TEXT, runs[TEXT]), tabulate({**runs.loss, "parameters": parameters})],
        f"{METHOD}Toy task: recall. 100 steps on text, 250 of recall.",
    )


@EXPERIMENTS.register("head-diversity")
def measure_head_diversity(lab: LabContext) -> ExperimentResult:
    """How differently the heads of a layer attend: before and after training, and over trainings."""
    text = make_text_task()
    maps = {0: [collect_maps(build(make_small_config(text), seed), text) for seed in lab.make_seeds(3)]}
    for n in lab.pick_size((50, 200), (2, 4)):
        runs = train_by_task(lab, {TEXT: (text, n)}, {"decoder": {}})[TEXT]["decoder"]
        maps[n] = [collect_maps(run.model, text) for run in runs]
    distances = {
        "two heads of a layer": {n: [mean_distance(x) for x in of] for n, of in maps.items()},
        "nearest in the layer": {n: [nearest_distance(x, x) for x in of] for n, of in maps.items()},
        "nearest in another training": {
            n: [nearest_distance(x, y) for x, y in zip(of, of[1:] + of[:1], strict=True)]
            for n, of in maps.items()
        },
    }
    columns = {f"{n} steps": {name: of[n] for name, of in distances.items()} for n in maps}
    first, *_, last = columns
    pair, nearest, counterpart = distances
    claims = [
        *make_loss_claims("The heads of a layer learn to attend differently.",
            "Vaswani et al., 2017, section 4; Clark et al., 2019, section 3",
            {TEXT: {n: of[pair] for n, of in columns.items()}}, first, last),
        *make_loss_claims("A head resembles one of another training more than any other of its layer.",
            "Li et al., 2016 (Convergent Learning), for units of image networks", {TEXT: columns[last]},
            counterpart, nearest),
        Claim("No two heads of a layer have equal weights.",
            "Vaswani et al., 2017, section 4: different tasks", "Nearest heads of a layer: "
            f"{format_mean(columns[last][nearest])} (equal: below 0.1).",
            verdict_above(columns[last][nearest], 0.1), TEXT),
    ]  # fmt: skip
    return ExperimentResult(
        "Do heads differ?",
        "Every head of a layer has the same form and starts from random weights. Do heads learn to attend to "
        "different tokens, or do they repeat one another?",
        claims,
        [LinePlot("Mean distance of two heads", "steps", mean_curves(distances)), tabulate(columns)],
        f"{METHOD}The distance of two heads is half the sum of the absolute differences of their weights, 0 "
        "if equal and 1 if disjoint, on average over the queries of 16 held-out rows.",
    )


@torch.no_grad()
def collect_maps(model: Any, problem: SyntheticTask) -> Tensor:
    """Attention weights of all layers of a decoder on held-out rows: (L, H, B, T, T)."""
    maps: list[Tensor] = []
    for layer in model.eval().stack.layers:
        layer.attn.weights_hooks = [maps.append]
    model.features(problem.batch(0, FIRST_HELD_OUT).target)
    return torch.stack(maps).transpose(1, 2)


def head_distances(a: Tensor, b: Tensor) -> Tensor:
    """Total variation of the weights of every two heads of a layer, (L, H, B, T, T) each: (L, H, H)."""
    heads = [(a[:, i, None] - b).abs().sum(-1).mean((2, 3)) / 2 for i in range(a.size(1))]
    return torch.stack(heads, 1)


def mean_distance(maps: Tensor) -> float:
    """Mean distance of two heads of a layer, over pairs and layers."""
    n = maps.size(1)
    return float(head_distances(maps, maps).sum() / (len(maps) * n * (n - 1)))


def nearest_distance(a: Tensor, b: Tensor) -> float:
    """Mean distance of a head of ``a`` to the nearest head of the same layer of ``b``, itself excepted."""
    distances = head_distances(a, b)
    return float(distances.masked_fill(distances == 0, math.inf).amin(-1).mean())


@EXPERIMENTS.register("model-size")
def measure_model_sizes(lab: LabContext) -> ExperimentResult:
    """Bigger is better: loss by number of parameters, on text and on a toy task, and its power law."""
    losses: dict[str, dict[int, list[float]]] = {TEXT: {}, TOY: {}}
    for task, problem in ((TEXT, make_text_task()), (TOY, make_lookup_task(symbols=32))):
        for width in lab.pick_size((8, 16, 24, 40, 64), (8, 16, 32)):
            design = {"model": make_small_config(problem, d_model=width, d_ff=4 * width)}
            steps, rate = lab.pick_size(150, 4), 0.02 * width**-0.5
            for run in train_designs(lab, problem, design, steps=steps, lr=rate)["model"]:
                size = sum(p.numel() for name, p in run.model.named_parameters() if "layers" in name)
                losses[task].setdefault(size, []).append(run.loss)
    claims, figures = list[Claim](), list[LinePlot]()
    for task, of in losses.items():
        *smaller, largest = of
        a, b, c = fit_power_law({n: of[n] for n in smaller})
        predicted, (low, high) = a * largest**-b + c, bootstrap_exponent(of, lab.seed)
        a, b, c = fit_power_law(of)
        claims += [
            Claim("Bigger models are better.", f"{KAPLAN}, section 3.2 and figure 1",
                f"{smaller[0]:,} to {largest:,} parameters: {', '.join(map(format_mean, of.values()))}.",
                verdict_all(verdict_less(of[n], of[m]) for m, n in pairwise(of)), task),
            Claim("A power law of the smaller models predicts the loss of the largest.",
                f"{KAPLAN}, equation 1.1; Hoffmann et al., 2022, equation 2, with a constant",
                f"L = {a:.3g} N^{-b:.3g} + {c:.3g}, exponent from {low:.3g} to {high:.3g}; predicted: "
                f"{predicted:.3g}, measured: {format_mean(of[largest])} (predicts: within 5 %).",
                verdict_within([loss / predicted for loss in of[largest]], 1.0, 0.05), task),
        ]  # fmt: skip
        law = {"power law": [(n, a * n**-b + c) for n in of]}
        figures.append(LinePlot(f"Loss, {task}", "parameters", mean_curves({"loss": of}) | law, log=True))
    columns = {"loss": {f"{task}, {n:,}": v for task, of in losses.items() for n, v in of.items()}}
    return ExperimentResult(
        "Is bigger better?",
        "Language models have grown a thousandfold because their loss falls smoothly with their size. Does "
        "that already hold for models of a few thousand parameters?",
        claims,
        [*figures, tabulate(columns)],
        f"{METHOD}Here d_model is 8 to 64 and d_ff four times as wide; 150 steps at a rate of 0.02 / "
        "sqrt(d_model). Toy task: a table of 1,024 entries. N counts the parameters of the layers. The "
        "exponent's interval has 95 % of the fits to 200 draws of seeds.",
    )


def fit_power_law(losses: Mapping[int, Sequence[float]]) -> tuple[float, float, float]:
    """a, b and c of L(N) = a N^-b + c: a line through log(L - c), for the c of the least squared error."""
    sizes, means = list(losses), [fmean(values) for values in losses.values()]

    def fit(c: float) -> tuple[float, tuple[float, float, float]]:
        line = linear_regression([*map(math.log, sizes)], [math.log(loss - c) for loss in means])
        a, b = math.exp(line.intercept), -line.slope
        return sum((a * n**-b + c - y) ** 2 for n, y in zip(sizes, means, strict=True)), (a, b, c)

    return min(fit(min(means) * i / 500) for i in range(500))[1]


def bootstrap_exponent(losses: Mapping[int, Sequence[float]], seed: int) -> tuple[float, float]:
    """95 % interval of the exponent over draws of seeds with replacement, one draw for each size."""
    rng = random.Random(seed)
    draws = ({n: rng.choices(of, k=len(of)) for n, of in losses.items()} for _ in range(200))
    low, *_, high = quantiles([fit_power_law(draw)[1] for draw in draws], n=40)
    return low, high


@EXPERIMENTS.register("zero-shot")
def measure_zero_shot(lab: LabContext) -> ExperimentResult:
    """A task that a language model was not trained for, order of words, by the length of training."""
    text = make_text_task()
    rows = text.batch(0, FIRST_HELD_OUT + 100, lab.pick_size(400, 20)).target.numpy()
    right: SeedValues = {}
    losses: SeedValues = {}
    for n in lab.pick_size((50, 100, 200, 400), (2, 4)):
        runs = train_designs(lab, text, {"decoder": make_small_config(text)}, steps=n)["decoder"]
        losses[f"{n} steps"] = [run.loss for run in runs]
        right[f"{n} steps"] = [100 * rank_word_order(run.model, rows) for run in runs]
    first, *_, last = right
    claims = [
        Claim("A language model solves a task that it was not trained for.",
            "Radford et al., 2019 (GPT-2), section 3", f"Right after {last}: {format_mean(right[last])} % "
            "(solves: above 50 %, the level of chance).", verdict_above(right[last], 50.0), TEXT),
        *make_loss_claims("It solves less of it after a short training than after a long one.",
            "Radford et al., 2018 (GPT-1), figure 2, right", {TEXT: right}, first, last),
        Claim("It solves more of it with each doubling of the training.",
            "Radford et al., 2018 (GPT-1), figure 2, right", f"{first} to {last}: "
            f"{', '.join(map(format_mean, right.values()))} %.",
            verdict_all(verdict_less(right[m], right[n]) for m, n in pairwise(right)), TEXT),
    ]  # fmt: skip
    curves = {"% right": [(int(n.split()[0]), fmean(of)) for n, of in right.items()]}
    columns = {"% right": right, "loss": losses}
    return ExperimentResult(
        "A task that was not trained",
        "A language model only learns to predict what follows. If it becomes good at that, it can rank "
        "texts, and so solve tasks that it has never seen. How much training does that take?",
        claims,
        [LinePlot("Order of words", "steps", curves, log=True), tabulate(columns)],
        f"{METHOD}The task: a held-out row is likelier than with its inner words shuffled, which frequencies "
        f"of bytes cannot tell apart; {len(rows)} rows. Each length of training is a run of its own.",
    )


def shuffle_inner_words(rows: Ints) -> Ints:
    """The same rows with their inner words in a random order: (N, T) -> (N, T)."""
    rng, shuffled = np.random.default_rng(0), rows.copy()
    for row in shuffled:
        words = bytes(row.tolist()).split(b" ")
        words[1:-1] = [words[1:-1][i] for i in rng.permutation(len(words[1:-1]))]
        row[:] = list(b" ".join(words))
    return shuffled


@torch.inference_mode()
def rank_word_order(model: Any, rows: Ints) -> float:
    """Share of rows (N, T) that are likelier, given their first byte, than with their words shuffled."""
    shuffled = shuffle_inner_words(rows)
    scores = []
    for tokens in (torch.from_numpy(of[(rows != shuffled).any(1)]) for of in (rows, shuffled)):
        log_probs = model.eval()(tokens)[:, :-1].float().log_softmax(-1)
        scores.append(log_probs.gather(-1, tokens[:, 1:, None]).sum((1, 2)))
    return float((scores[0] > scores[1]).float().mean())
