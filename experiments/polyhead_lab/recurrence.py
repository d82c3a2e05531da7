"""The Transformer against recurrent and convolutional networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polyhead import Choice, ModelConfig, build
from polyhead.data.batching.collate import PairBatch
from polyhead.models.seq2seq import Seq2Seq
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.train.tasks.common import seq2seq_features
from polyhead_lab.caches import Stepper
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
    FIRST_HELD_OUT,
    FIRST_SYMBOL,
    SyntheticTask,
    collect_first_curves,
    make_copy_task,
    make_latch_task,
    make_recall_task,
    make_small_config,
    pick_model_size,
    run_short_training,
    shrink_if_quick,
    time_training_steps,
    train_designs,
)
from polyhead_lab.statistics import (
    format_mean,
    format_mean_percent,
    median_times,
    time_interleaved,
    time_ratios,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
    verdict_within,
)


def choose_recurrent(kind: str, **options: bool) -> dict[str, Choice]:
    """Settings of a model with recurrent blocks, which need no positions."""
    return {"block": Choice(kind, **options), "position": Choice("none")}


LENGTH, N_VALUES = 32, 8
LATCH_TASK = make_latch_task(LENGTH, N_VALUES)
PLAIN_RNN, GATED_RNNS, CNN, TRANSFORMER = "RNN", ("LSTM", "GRU"), "CNN", "Transformer"
# only the decoder reads the text, so attention to the source would add nothing
_DESIGNS: dict[str, dict[str, Any]] = {
    TRANSFORMER: {},
    PLAIN_RNN: choose_recurrent("rnn", attention=False, bidirectional=False),
    "LSTM": choose_recurrent("lstm", attention=False, bidirectional=False),
    "GRU": choose_recurrent("gru", attention=False, bidirectional=False),
    CNN: {"block": Choice("gated_conv")},
}
NEAR_SLICE, FAR_SLICE = slice(1, 5), slice(LENGTH - 8, LENGTH)  # distances that the claims compare

ByDistance = dict[str, list[list[float]]]  # design -> a value at every distance, one list per seed


def measure_recency(lab: LabContext) -> tuple[list[Claim], list[Figure], str]:
    """Claims, figures and method: recall and gradients by distance of networks that read one text."""
    steps = lab.pick_size(250, 4)
    recall: ByDistance = {name: [] for name in _DESIGNS}
    gradients: ByDistance = {name: [] for name in _DESIGNS}
    for seed in lab.make_seeds(3):
        for name, changes in _DESIGNS.items():
            config = make_small_config(LATCH_TASK, **changes)
            gradients[name].append(measure_gradient_by_distance(build(config, seed), LATCH_TASK, seed))
            task = shrink_if_quick(lab, LATCH_TASK)
            model = run_short_training(config, task, seed=seed, steps=steps).model
            recall[name].append(measure_recall(model, LATCH_TASK, lab.pick_size(8, 1), find_latch_distances))
        lab.info(f"seed {seed}: recall and gradients by distance measured")
    method = (
        f"Recall and gradients by distance: the decoder alone reads {LENGTH} tokens, one of which, at a "
        f"random place, is one of {N_VALUES} values and the others are noise; from there on it outputs that "
        f"value. No design has a source to read. {steps} steps of 64 rows, learning rate 2e-3, "
        f"{len(lab.make_seeds(3))} seeds."
    )
    return make_claims(recall, gradients), make_figures(recall, gradients), method


def make_claims(recall: ByDistance, gradients: ByDistance) -> list[Claim]:
    """The claims, from the recall and the gradients at every distance, one list per seed."""
    near, far = (
        {name: [sum(row[part]) / len(row[part]) for row in rows] for name, rows in recall.items()}
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
            TOY,
        ),
        Claim(
            "Gates preserve the gradient for longer.",
            "Hochreiter & Schmidhuber, 1997; Cho et al., 2014",
            "At the start of training: "
            + ", ".join(f"{name} {factors[name]}" for name in (PLAIN_RNN, *GATED_RNNS))
            + ".",
            verdict_all(verdict_less(decades[PLAIN_RNN], decades[name]) for name in GATED_RNNS),
            TOY,
        ),
        Claim(
            "The gradient of attention does not vanish with distance.",
            "Vaswani et al., 2017, table 1: paths of length 1",
            f"At the start of training: Transformer {factors[TRANSFORMER]} (does not vanish: at least a "
            "tenth).",
            verdict_above(decades[TRANSFORMER], -1.0),
            TOY,
        ),
        Claim(
            "A plain recurrent network recalls mainly recent tokens.",
            "Bengio et al., 1994: gradients vanish over time",
            f"RNN: {near_text[PLAIN_RNN]} correct at distances 1 to 4, {far_text[PLAIN_RNN]} at {far_range}; "
            f"{chance}.",
            verdict_less(far[PLAIN_RNN], near[PLAIN_RNN]),
            TOY,
        ),
        Claim(
            "Gated networks recall farther back than a plain one.",
            "Hochreiter & Schmidhuber, 1997; Cho et al., 2014",
            f"At distances {far_range}: "
            + ", ".join(f"{name} {far_text[name]}" for name in (PLAIN_RNN, *GATED_RNNS))
            + " correct.",
            verdict_all(verdict_less(far[PLAIN_RNN], far[name]) for name in GATED_RNNS),
            TOY,
        ),
        Claim(
            "Convolutions recall nothing beyond the tokens that their layers see.",
            "Gehring et al., 2017, section 3.2: N layers of width k see 1 + N (k - 1) tokens",
            f"CNN: {near_text[CNN]} correct at distances 1 to 4, {far_text[CNN]} at {far_range}; {chance} "
            "(nothing: at most 5 points above).",
            verdict_below(far[CNN], 1 / N_VALUES + 0.05),
            TOY,
        ),
    ]


def make_figures(recall: ByDistance, gradients: ByDistance) -> list[Figure]:
    """Recall and gradients over distance, means over the seeds."""
    return [
        LinePlot(
            "Recall of one token by distance",
            "tokens from the end",
            {name: _average(rows, lambda row, d: 100 * row[d]) for name, rows in recall.items()},
            f"Percent of values correct, mean over seeds. By chance: {100 / N_VALUES:.1f}.",
            from_zero=True,
        ),
        LinePlot(
            "Gradient by distance, before training",
            "tokens from the end",
            {
                name: _average(rows, lambda row, d: _decades(row[d] / row[1]), 1)
                for name, rows in gradients.items()
            },
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


def _average(rows: list[list[float]], value: Any, start: int = 0) -> list[tuple[float, float]]:
    return [(d, sum(value(row, d) for row in rows) / len(rows)) for d in range(start, LENGTH)]


def _decades(ratio: float) -> float:
    """log10, at least -16: no path from that token has the gradient 0."""
    return math.log10(max(ratio, 1e-16))


ITEMS, VALUES = 8, 4
RECALL_TASK = make_recall_task(ITEMS, ITEMS, VALUES)
TRANSFORMER, _LSTM_ALONE = "Transformer", "LSTM, no attention"
_RECURRENT_DESIGNS: dict[str, dict[str, Any]] = {
    TRANSFORMER: {},
    "LSTM": choose_recurrent("lstm"),
    "GRU": choose_recurrent("gru"),
    "CNN": {"block": Choice("gated_conv")},
    _LSTM_ALONE: choose_recurrent("lstm", attention=False, bidirectional=False),
    "GRU, no attention": choose_recurrent("gru", attention=False, bidirectional=False),
}
_WITH_ATTENTION, _WITHOUT_ATTENTION = ("LSTM", "GRU"), (_LSTM_ALONE, "GRU, no attention")


@EXPERIMENTS.register("recurrence")
def measure_recurrence(lab: LabContext) -> ExperimentResult:
    """Transformer, RNN, LSTM, GRU, CNN: recall and gradients by distance, training and decoding speed."""
    steps = lab.pick_size(250, 4)
    designs = {name: make_recurrent_config(name, RECALL_TASK) for name in _RECURRENT_DESIGNS}
    status_format = "seed {seed}, {name}: {run.accuracy:.1%} correct"
    runs = train_designs(lab, RECALL_TASK, designs, steps=steps, status_format=status_format)
    capacity = {ITEMS: [run.accuracy for run in runs[_LSTM_ALONE]]}
    for n in lab.pick_size((4, 12), (4,)):  # items of the source of a network without attention
        problem = make_recall_task(n, n, VALUES)
        design, problem = make_recurrent_config(_LSTM_ALONE, problem), shrink_if_quick(lab, problem)
        capacity[n] = [
            run_short_training(design, problem, seed=seed, steps=steps, lr=5e-3).accuracy
            for seed in lab.make_seeds(3)
        ]
    n_batches = lab.pick_size(8, 1)
    near_far = {
        name: [measure_recall(r.model, RECALL_TASK, n_batches, find_item_distances) for r in rs]
        for name, rs in runs.items()
    }
    mean_loss = {name: [run.mean_loss for run in rs] for name, rs in runs.items()}
    accuracy = {name: [run.accuracy for run in rs] for name, rs in runs.items()}
    by_distance, distance_figures, method = measure_recency(lab)
    lab.info("recall measured; now speeds")
    lengths = lab.pick_size([16, 64, 256], [4, 8])
    size, training = pick_model_size(lab, 512), {}
    for length in lengths:
        problem = make_copy_task(length, 64)
        designs = {name: make_recurrent_config(name, problem, **size) for name in _RECURRENT_DESIGNS}
        batch = problem.batch(lab.seed, 0, 8)
        training[length] = time_training_steps(lab, designs, batch, lab.pick_size(5, 2))
    contexts = lab.pick_size([64, 256, 1024, 4096], [4, 8])
    decoding = time_decoding(lab, contexts)
    last, longest = lengths[-1], contexts[-1]
    slower = {
        name: time_ratios(training[last][name], training[last][TRANSFORMER]) for name in _WITH_ATTENTION
    }
    flat, grown = (
        time_ratios(decoding[longest][name], decoding[contexts[0]][name]) for name in ("LSTM", TRANSFORMER)
    )

    claims = [
        Claim(
            "A recurrent network that stores the whole source in one vector recalls less than one "
                    "with attention.",
            "Bahdanau et al., 2015, section 1 and figure 2; Cho et al., 2014",
            "; ".join(f"{name} {format_mean_percent(accuracy[name])}" for name in (*_WITH_ATTENTION,
                *_WITHOUT_ATTENTION)) + " of values correct.",
            verdict_all(verdict_less(accuracy[without], accuracy[attends]) for attends,
                without in zip(_WITH_ATTENTION, _WITHOUT_ATTENTION, strict=True)), TOY,
        ),
        Claim(
            "The longer the source, the less of it such a vector can store.",
            "Cho et al., 2014, section 4; Bahdanau et al., 2015, figure 2",
            f"{_LSTM_ALONE}: " + ", ".join(f"{format_mean_percent(capacity[n])} correct of {n} items"
                for n in sorted(capacity)) + f"; {100 / VALUES:.0f} % by chance.",
            verdict_less(capacity[max(capacity)], capacity[min(capacity)]), TOY,
        ),
        *by_distance,
        Claim(
            "The Transformer recalls equally well at every distance.",
            "Vaswani et al., 2017, table 1: paths of length 1",
            f"{format_mean([100 * n[0] for n in near_far[TRANSFORMER]])} % correct for the last item, "
            f"{format_mean([100 * n[-1] for n in near_far[TRANSFORMER]])} % for the first (equally well: "
            "within 5 points).",
            verdict_within([n[0] - n[-1] for n in near_far[TRANSFORMER]], 0.0, 0.05), TOY,
        ),
        Claim(
            "The Transformer learns this in fewer steps than recurrent networks with attention.",
            "Vaswani et al., 2017, table 2, for the cost of learning to translate",
            "Mean loss over training: "
            + ", ".join(f"{name} {format_mean(mean_loss[name])}" for name in (TRANSFORMER,
                *_WITH_ATTENTION)) + ".",
            verdict_all(verdict_less(mean_loss[TRANSFORMER], mean_loss[name]) for name in _WITH_ATTENTION),
            TOY,
        ),
        Claim(
            "The Transformer trains faster, because it reads all tokens at once.",
            "Vaswani et al., 2017, table 1 and section 4",
            f"A training step over {last} tokens: LSTM {format_mean(slower['LSTM'])}, GRU "
            f"{format_mean(slower['GRU'])} times the Transformer's time, on {torch.get_num_threads()} "
            "thread(s).",
            verdict_all(verdict_above(r, 1.0) for r in slower.values()),
        ),
        Claim(
            "A recurrent decoder's step takes the same time at any length.",
            "its state is of constant size",
            f"From {contexts[0]} to {longest:,} tokens: LSTM {format_mean(flat)} times, Transformer "
            f"{format_mean(grown)} times (the same: within 25 %).",
            verdict_within(flat, 1.0, 0.25),
        ),
        Claim(
            "A Transformer decoder's step takes longer the longer its output is.",
            "it reads all keys and values at every step",
            f"At {longest:,} tokens {format_mean(grown)} times as long as at {contexts[0]}.",
            verdict_above(grown, 1.0),
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        LinePlot(
            "Recall by distance",
            "items from the end",
            {
                name: list(enumerate((100 * sum(v) / len(v) for v in zip(*rows, strict=True)), 1))
                for name, rows in near_far.items()
            },
            "Percent of values correct, mean over seeds, for the last item of the source (1) to the first "
            f"({ITEMS}). By chance: {100 / VALUES:.0f}.",
            from_zero=True,
        ),
        *distance_figures,
        DotPlot(
            "Correct values", "%, held-out",
            {name: [100 * r for r in accuracy[name]] for name in _RECURRENT_DESIGNS},
            SEEDS_NOTE,
        ),
        LinePlot("Training loss (first seed)", "step", collect_first_curves(runs), from_zero=True),
        LinePlot(
            "A training step",
            "tokens per row",
            {name: [(n, 1e3 * median_times(step_times)[name]) for n,
                step_times in training.items()] for name in _RECURRENT_DESIGNS},
            "Milliseconds, forward and backward, 8 rows.",
            log=True,
        ),
        LinePlot(
            "A decoding step",
            "context tokens",
            {name: [(n, 1e3 * median_times(step_times)[name]) for n,
                step_times in decoding.items()] for name in decoding[longest]},
            "Milliseconds for the next token of 8 rows.",
            log=True,
            from_zero=True,
        ),
        ResultTable(
            "All numbers",
            ("design", "parameters", "correct, %", f"ms per training step, {last} tokens",
                f"ms per decoding step, {longest:,} tokens"),
            [
                (name, runs[name][0].parameters, format_mean_percent(accuracy[name])[:-2],
                 f"{1e3 * median_times(training[last])[name]:.1f}",
                 f"{1e3 * median_times(decoding[longest])[name]:.2f}" if name in decoding[longest]
                     else "not measured")
                for name in _RECURRENT_DESIGNS
            ],
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "Transformer, recurrence, convolution",
        "A recurrent network reads token by token into a state of fixed size. Attention keeps every token "
        "and can attend to any of them. How do recall and time differ?",
        claims,
        figures,
        "Encoder-decoders of 2+2 layers, d_model 64, pre-norm; recurrent decoders attend to the source "
        "unless the design has no attention, where the encoder is unidirectional too. CNN: gated "
        f"convolutions of width 3 with attention to the source. Task: {ITEMS} items, each a key and one of "
        f"{VALUES} values; given a key, output its value. {steps} steps of 64 rows, cosine, one learning "
        f"rate (5e-3) for all, {len(lab.make_seeds(3))} seeds.\n\n{method}\n\n"
        f"Speed: d_model {lab.pick_size(128, 16)}, 8 rows, random weights, fp32, alternating designs.",
    )


def make_recurrent_config(name: str, problem: SyntheticTask, **size: Any) -> ModelConfig:
    """Model config of a design for a task."""
    return make_small_config(problem, **{**_RECURRENT_DESIGNS[name], **size})


def find_item_distances(batch: PairBatch) -> torch.Tensor:
    """Distance from the end of the source, 0 for the last, of the item that each query asks for: (B, T)."""
    keys = (batch.source - FIRST_SYMBOL) // VALUES  # token ids of the recall task: key * values + value
    query_keys = batch.target - (FIRST_SYMBOL + ITEMS * VALUES)
    return ITEMS - 1 - (keys[:, None, :] == query_keys[:, :, None]).int().argmax(-1)


def time_decoding(lab: LabContext, contexts: list[int]) -> dict[int, SeedValues]:
    """Seconds of the next token of 8 rows, for every context length and design, all interleaved."""
    problem = make_copy_task(8, 64)._replace(max_len=contexts[-1] + 256)
    token, runners = torch.full((8, 1), FIRST_SYMBOL), {}
    for context in contexts:
        for name in (TRANSFORMER, "LSTM", "GRU", "CNN"):
            model = build(make_recurrent_config(name, problem, **pick_model_size(lab, 512)), lab.seed)
            stepper = Stepper(model, problem.batch(1, 0, 8).source, context + 256)
            for _ in range(context // min(context, 512)):
                stepper.feed(torch.full((8, min(context, 512)), FIRST_SYMBOL))
            runners[context, name] = partial(stepper.feed, token)
    step_times = time_interleaved(runners, lab.pick_size(15, 3))
    return {n: {name: times for (at, name), times in step_times.items() if at == n} for n in contexts}
