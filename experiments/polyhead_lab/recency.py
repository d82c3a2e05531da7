"""How far back networks recall, and how the gradient of their output fades with distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead import Choice, build
from polyhead.data.batching.collate import PairBatch
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.train.tasks.common import seq2seq_features
from polyhead.viz.plot import Curve
from polyhead_lab.registry import LabContext
from polyhead_lab.result import Claim, Figure, LinePlot
from polyhead_lab.short_training import FIRST_HELD_OUT, make_small_config, run_short_training, shrink_if_quick
from polyhead_lab.statistics import (
    format_mean,
    format_mean_percent,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
)
from polyhead_lab.tasks import SyntheticTask, make_latch_task


def choose_recurrent(kind: str, **options: bool) -> dict[str, Choice]:
    """Settings of a model with recurrent blocks, which need no positions."""
    return {"block": Choice(kind, **options), "position": Choice("none")}


LENGTH, N_VALUES = 32, 8
LATCH_TASK = make_latch_task(LENGTH, N_VALUES)
PLAIN_RNN, GATED_RNNS, CNN, FULL_ATTENTION = "RNN", ("LSTM", "GRU"), "CNN", "Transformer"
# only the decoder reads the text, so attention to the source would add nothing
_DESIGNS: dict[str, dict[str, Any]] = {
    FULL_ATTENTION: {},
    PLAIN_RNN: choose_recurrent("rnn", attention=False, bidirectional=False),
    "LSTM": choose_recurrent("lstm", attention=False, bidirectional=False),
    "GRU": choose_recurrent("gru", attention=False, bidirectional=False),
    CNN: {"block": Choice("gated_conv")},
}
NEAR_SLICE, FAR_SLICE = slice(1, 5), slice(LENGTH - 8, LENGTH)  # distances that the claims compare


class RecencyResult(NamedTuple):
    """Claims and figures on recall and gradients by distance."""

    claims: list[Claim]
    figures: list[Figure]
    method: str


def measure_recency(lab: LabContext) -> RecencyResult:
    """Recall and gradients by distance of an RNN, LSTM, GRU, CNN and Transformer that read one text."""
    steps = lab.pick_size(250, 4)
    recall: dict[str, list[list[float]]] = {name: [] for name in _DESIGNS}
    gradients: dict[str, list[list[float]]] = {name: [] for name in _DESIGNS}
    for seed in lab.make_seeds(3):
        for name, changes in _DESIGNS.items():
            config = make_small_config(LATCH_TASK, **changes)
            gradients[name].append(measure_gradient_by_distance(build(config, seed), LATCH_TASK, seed))
            task = shrink_if_quick(lab, LATCH_TASK)
            model = run_short_training(config, task, seed=seed, steps=steps).model
            recall[name].append(measure_recall(model, LATCH_TASK, lab.pick_size(8, 1), find_latch_distances))
        lab.info(f"seed {seed}: recall and gradients by distance measured")
    return RecencyResult(
        make_claims(recall, gradients), make_figures(recall, gradients), _describe(lab, steps)
    )


def make_claims(
    recall: Mapping[str, list[list[float]]], gradients: Mapping[str, list[list[float]]]
) -> list[Claim]:
    """The claims, from the recall and the gradients at every distance, one list per seed."""
    near, far = (
        {name: [_mean(row[part]) for row in rows] for name, rows in recall.items()}
        for part in (NEAR_SLICE, FAR_SLICE)
    )
    decades = {
        name: [_decades(row[-1] / row[1]) for row in rows] for name, rows in gradients.items()
    }  # log10 of the gradient at the largest distance, relative to distance 1
    factors = {name: f"10^({format_mean(values)}) times" for name, values in decades.items()}
    far_range, chance = f"{FAR_SLICE.start} to {LENGTH - 1}", f"{100 / N_VALUES:.1f} % by chance"
    near_text, far_text = (
        {name: format_mean_percent(shares) for name, shares in part.items()} for part in (near, far)
    )
    return [
        Claim(
            "The gradient of a plain recurrent network vanishes with distance.",
            "Bengio et al., 1994; Pascanu et al., 2013",
            f"At the start of training, from distance 1 to {LENGTH - 1}: RNN {factors[PLAIN_RNN]} (vanishes: "
            "below a thousandth).",
            verdict_below(decades[PLAIN_RNN], -3.0),
        ),
        Claim(
            "Gates preserve the gradient for longer.",
            "Hochreiter & Schmidhuber, 1997; Cho et al., 2014",
            "At the start of training: "
            + ", ".join(f"{name} {factors[name]}" for name in (PLAIN_RNN, *GATED_RNNS))
            + ".",
            verdict_all(verdict_less(decades[PLAIN_RNN], decades[name]) for name in GATED_RNNS),
        ),
        Claim(
            "The gradient of attention does not vanish with distance.",
            "Vaswani et al., 2017, table 1: paths of length 1",
            f"At the start of training: Transformer {factors[FULL_ATTENTION]} (does not vanish: at least a "
            "tenth).",
            verdict_above(decades[FULL_ATTENTION], -1.0),
        ),
        Claim(
            "A plain recurrent network recalls mainly recent tokens.",
            "Bengio et al., 1994: gradients vanish over time",
            f"RNN: {near_text[PLAIN_RNN]} correct at distances 1 to 4, {far_text[PLAIN_RNN]} at {far_range}; "
            f"{chance}.",
            verdict_less(far[PLAIN_RNN], near[PLAIN_RNN]),
        ),
        Claim(
            "Gated networks recall farther back than a plain one.",
            "Hochreiter & Schmidhuber, 1997; Cho et al., 2014",
            f"At distances {far_range}: "
            + ", ".join(f"{name} {far_text[name]}" for name in (PLAIN_RNN, *GATED_RNNS))
            + " correct.",
            verdict_all(verdict_less(far[PLAIN_RNN], far[name]) for name in GATED_RNNS),
        ),
        Claim(
            "Convolutions recall nothing beyond the tokens that their layers see.",
            "Gehring et al., 2017, section 3.2: N layers of width k see 1 + N (k - 1) tokens",
            f"CNN: {near_text[CNN]} correct at distances 1 to 4, {far_text[CNN]} at {far_range}; {chance} "
            "(nothing: at most 5 points above).",
            verdict_below(far[CNN], 1 / N_VALUES + 0.05),
        ),
    ]


def make_figures(
    recall: Mapping[str, list[list[float]]], gradients: Mapping[str, list[list[float]]]
) -> list[Figure]:
    """Recall and gradients over distance, means over the seeds."""
    return [
        LinePlot(
            "Recall of one token by distance",
            "tokens from the end",
            [Curve(name, _average(rows, lambda row, d: 100 * row[d])) for name, rows in recall.items()],
            f"Percent of values correct, mean over seeds. By chance: {100 / N_VALUES:.1f}.",
            from_zero=True,
        ),
        LinePlot(
            "Gradient by distance, before training",
            "tokens from the end",
            [
                Curve(name, _average(rows, lambda row, d: _decades(row[d] / row[1]), 1))
                for name, rows in gradients.items()
            ],
            "Power of ten of the gradient of the last output with respect to an earlier token, relative to "
            "distance 1, mean over seeds; no path: -16.",
        ),
    ]


@torch.inference_mode()
def measure_recall(
    model: Seq2Seq, task: SyntheticTask, n_batches: int, find_distances: Callable[[PairBatch], Tensor]
) -> list[float]:
    """Share of correct labels at each distance, on held-out rows; the distances of labels are (B, T)."""
    model.eval()
    distances, is_correct = [], []
    for number in range(FIRST_HELD_OUT, FIRST_HELD_OUT + n_batches):
        batch = task.batch(0, number)
        is_label = batch.labels != IGNORE_INDEX
        predicted = model.head(seq2seq_features(model, batch)).argmax(-1)
        distances.append(find_distances(batch)[is_label])
        is_correct.append((predicted == batch.labels)[is_label])
    at, n = torch.cat(distances), batch.labels.size(1)
    n_correct = torch.bincount(at, torch.cat(is_correct).float(), n)
    return list((n_correct / torch.bincount(at, minlength=n)).tolist())


def find_latch_distances(batch: PairBatch) -> Tensor:
    """Distance of each label from the marked token, where the labels begin."""
    return (batch.labels != IGNORE_INDEX).long().cumsum(1) - 1


def measure_gradient_by_distance(model: Seq2Seq, task: SyntheticTask, seed: int) -> list[float]:
    """Gradient norm of the last token's right logit, with respect to the embedding at each distance."""
    batch, embedded = task.batch(seed, 0), []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    handle = model.decoder_embedding.register_forward_hook(keep)
    logits = model.eval()(batch.source, batch.target)
    handle.remove()
    logits[:, -1].gather(1, batch.labels[:, -1:]).sum().backward()
    model.zero_grad(set_to_none=True)
    assert embedded[0].grad is not None
    return list(embedded[0].grad.norm(dim=-1).mean(0).flip(0).tolist())


def _describe(lab: LabContext, steps: int) -> str:
    return (
        f"Recall and gradients by distance: the decoder alone reads {LENGTH} tokens, one of which, at a "
        f"random place, is one of {N_VALUES} values and the others are noise; from there on it outputs that "
        f"value. No design has a source to read. {steps} steps of 64 rows, learning rate 2e-3, "
        f"{len(lab.make_seeds(3))} seeds."
    )


def _average(rows: list[list[float]], value: Any, start: int = 0) -> list[tuple[float, float]]:
    return [(d, _mean([value(row, d) for row in rows])) for d in range(start, LENGTH)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _decades(ratio: float) -> float:
    """log10, at least -16: no path from that token has the gradient 0."""
    return math.log10(max(ratio, 1e-16))
