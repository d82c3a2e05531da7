"""The Transformer against recurrent and convolutional networks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from polyhead import Choice, ModelConfig, build
from polyhead.data.batching.collate import PairBatch
from polyhead.viz.plot import Curve
from polyhead_lab.caches import Stepper
from polyhead_lab.recency import choose_recurrent, measure_recall, measure_recency
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import SEEDS_NOTE, Claim, DotPlot, ExperimentResult, Figure, LinePlot, ResultTable
from polyhead_lab.short_training import (
    collect_first_curves,
    make_small_config,
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
    verdict_less,
    verdict_within,
)
from polyhead_lab.tasks import FIRST_SYMBOL, SyntheticTask, make_copy_task, make_recall_task

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
    capacity = {ITEMS: [run.accuracy for run in runs[_LSTM_ALONE]]} | {
        n: measure_capacity(lab, n, steps) for n in lab.pick_size((4, 12), (4,))
    }
    n_batches = lab.pick_size(8, 1)
    near_far = {
        name: [measure_recall(r.model, RECALL_TASK, n_batches, find_item_distances) for r in rs]
        for name, rs in runs.items()
    }
    mean_loss = {name: [run.mean_loss for run in rs] for name, rs in runs.items()}
    accuracy = {name: [run.accuracy for run in rs] for name, rs in runs.items()}
    recency = measure_recency(lab)
    lab.info("recall measured; now speeds")
    lengths = lab.pick_size([16, 64, 256], [4, 8])
    training = {length: time_training(lab, length) for length in lengths}
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
                without in zip(_WITH_ATTENTION, _WITHOUT_ATTENTION, strict=True)),
        ),
        Claim(
            "The longer the source, the less of it such a vector can store.",
            "Cho et al., 2014, section 4; Bahdanau et al., 2015, figure 2",
            f"{_LSTM_ALONE}: " + ", ".join(f"{format_mean_percent(capacity[n])} correct of {n} items"
                for n in sorted(capacity)) + f"; {100 / VALUES:.0f} % by chance.",
            verdict_less(capacity[max(capacity)], capacity[min(capacity)]),
        ),
        *recency.claims,
        Claim(
            "The Transformer recalls equally well at every distance.",
            "Vaswani et al., 2017, table 1: paths of length 1",
            f"{format_mean([100 * n[0] for n in near_far[TRANSFORMER]])} % correct for the last item, "
            f"{format_mean([100 * n[-1] for n in near_far[TRANSFORMER]])} % for the first (equally well: "
            "within 5 points).",
            verdict_within([n[0] - n[-1] for n in near_far[TRANSFORMER]], 0.0, 0.05),
        ),
        Claim(
            "The Transformer learns this in fewer steps than recurrent networks with attention.",
            "Vaswani et al., 2017, table 2, for the cost of learning to translate",
            "Mean loss over training: "
            + ", ".join(f"{name} {format_mean(mean_loss[name])}" for name in (TRANSFORMER,
                *_WITH_ATTENTION)) + ".",
            verdict_all(verdict_less(mean_loss[TRANSFORMER], mean_loss[name]) for name in _WITH_ATTENTION),
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
            [Curve(name, average_by_distance(rows)) for name, rows in near_far.items()],
            "Percent of values correct, mean over seeds, for the last item of the source (1) to the first "
            f"({ITEMS}). By chance: {100 / VALUES:.0f}.",
            from_zero=True,
        ),
        *recency.figures,
        DotPlot(
            "Correct values", "%, held-out",
            {name: [100 * r for r in accuracy[name]] for name in _RECURRENT_DESIGNS},
            SEEDS_NOTE,
        ),
        LinePlot("Training loss (first seed)", "step", collect_first_curves(runs), from_zero=True),
        LinePlot(
            "A training step",
            "tokens per row",
            [Curve(name, [(n, 1e3 * median_times(step_times)[name]) for n,
                step_times in training.items()]) for name in _RECURRENT_DESIGNS],
            "Milliseconds, forward and backward, 8 rows.",
            log=True,
        ),
        LinePlot(
            "A decoding step",
            "context tokens",
            [Curve(name, [(n, 1e3 * median_times(step_times)[name]) for n,
                step_times in decoding.items()]) for name in decoding[longest]],
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
        f"rate (5e-3) for all, {len(lab.make_seeds(3))} seeds.\n\n{recency.method}\n\n"
        f"Speed: d_model {lab.pick_size(128, 16)}, 8 rows, random weights, fp32, alternating designs.",
    )


def make_recurrent_config(name: str, problem: SyntheticTask, **size: Any) -> ModelConfig:
    """Model config of a design for a task."""
    return make_small_config(problem, **{**_RECURRENT_DESIGNS[name], **size})


def measure_capacity(lab: LabContext, items: int, steps: int) -> list[float]:
    """Accuracy of a network without attention whose source has ``items`` items, one run per seed."""
    problem = make_recall_task(items, items, VALUES)
    design = make_recurrent_config(_LSTM_ALONE, problem)
    return [
        run_short_training(design, shrink_if_quick(lab, problem), seed=seed, steps=steps, lr=5e-3).accuracy
        for seed in lab.make_seeds(3)
    ]


def find_item_positions(batch: PairBatch) -> torch.Tensor:
    """Position in the source of the item that each query asks for: (B, T)."""
    keys = (batch.source - FIRST_SYMBOL) // VALUES  # token ids of the recall task: key * values + value
    query_keys = batch.target - (FIRST_SYMBOL + ITEMS * VALUES)
    return (keys[:, None, :] == query_keys[:, :, None]).int().argmax(-1)


def find_item_distances(batch: PairBatch) -> torch.Tensor:
    """Distance of that item from the end of the source, 0 for the last."""
    return ITEMS - 1 - find_item_positions(batch)


def average_by_distance(rows: list[list[float]]) -> list[tuple[float, float]]:
    """(items from the end, percent correct)."""
    return [(i + 1, 100 * sum(values) / len(values)) for i, values in enumerate(zip(*rows, strict=True))]


def time_training(lab: LabContext, length: int) -> dict[str, list[float]]:
    """Seconds of a forward and backward pass of every design."""
    problem = make_copy_task(length, 64)
    size = pick_model_size(lab)
    designs = {name: make_recurrent_config(name, problem, **size) for name in _RECURRENT_DESIGNS}
    return time_training_steps(lab, designs, problem.batch(lab.seed, 0, 8), lab.pick_size(5, 2))


def time_decoding(lab: LabContext, contexts: list[int]) -> dict[int, dict[str, list[float]]]:
    """Seconds of the next token of 8 rows, for every context length and design, all interleaved."""
    problem = make_copy_task(8, 64)._replace(max_len=contexts[-1] + 256)
    token, runners = torch.full((8, 1), FIRST_SYMBOL), {}
    for context in contexts:
        for name in (TRANSFORMER, "LSTM", "GRU", "CNN"):
            model = build(make_recurrent_config(name, problem, **pick_model_size(lab)), lab.seed)
            stepper = Stepper(model, problem.batch(1, 0, 8).source, context + 256)
            for _ in range(context // min(context, 512)):
                stepper.feed(torch.full((8, min(context, 512)), FIRST_SYMBOL))
            runners[context, name] = partial(stepper.feed, token)
    step_times = time_interleaved(runners, lab.pick_size(15, 3))
    return {n: {name: times for (at, name), times in step_times.items() if at == n} for n in contexts}


def pick_model_size(lab: LabContext) -> dict[str, int]:
    """Sizes of the models whose speed is measured."""
    return lab.pick_size({"d_model": 128, "d_ff": 512}, {"d_model": 16, "d_ff": 16})
