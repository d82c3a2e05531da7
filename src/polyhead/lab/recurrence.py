"""The Transformer against what came before it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from polyhead.analysis.charts import Curve
from polyhead.config import ModelConfig
from polyhead.data.collate import Batch
from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.clock import medians, race, ratios
from polyhead.lab.learn import HELD_OUT, Learned, backward, design, first_curves, learn, sized, slowness
from polyhead.lab.result import SEEDS, Claim, Dots, Figure, Plot, Result, Table
from polyhead.lab.stepping import Stepper
from polyhead.lab.tasks import FIRST, Problem, copying, recall
from polyhead.lab.verdict import above, all_of, less, percent, said, within
from polyhead.models.build import build
from polyhead.models.seq2seq import Seq2Seq
from polyhead.registry import Choice
from polyhead.train.tasks.writing import features

ITEMS, VALUES = 8, 4
PROBLEM = recall(ITEMS, ITEMS, VALUES)
TRANSFORMER, PLAIN = "Transformer", "LSTM, no attention"
DESIGNS: dict[str, dict[str, Any]] = {
    TRANSFORMER: {},
    "LSTM": {"block": Choice("lstm"), "position": Choice("none")},
    "GRU": {"block": Choice("gru"), "position": Choice("none")},
    "CNN": {"block": Choice("conv")},
    PLAIN: {"block": Choice("lstm", attention=False, bidirectional=False), "position": Choice("none")},
    "GRU, no attention": {
        "block": Choice("gru", attention=False, bidirectional=False),
        "position": Choice("none"),
    },
}
WITH_ATTENTION, WITHOUT = ("LSTM", "GRU"), (PLAIN, "GRU, no attention")


@LAB.register("recurrence")
def recurrence(bench: Bench) -> Result:
    """Transformer, LSTM, GRU and CNN: recall by distance, training speed, decoding speed."""
    steps = bench.size(250, 4)
    runs: dict[str, list[Learned]] = {name: [] for name in DESIGNS}
    for seed in bench.seeds(3):
        for name in DESIGNS:
            runs[name].append(
                learn(config(name, PROBLEM), sized(bench, PROBLEM), seed=seed, steps=steps, lr=5e-3)
            )
            bench.say(f"seed {seed}, {name}: {100 * runs[name][-1].accuracy:.1f} % right")
    held = {ITEMS: [run.accuracy for run in runs[PLAIN]]} | {
        n: capacity(bench, n, steps) for n in bench.size((4, 12), (4,))
    }
    near_far = {name: [by_distance(run.model, bench.size(8, 1)) for run in rs] for name, rs in runs.items()}
    slow = slowness(runs)
    right = {name: [run.accuracy for run in rs] for name, rs in runs.items()}
    bench.say("recall measured; now speeds")
    lengths = bench.size([16, 64, 256], [4, 8])
    training = {length: training_times(bench, length) for length in lengths}
    contexts = bench.size([64, 256, 1024, 4096], [4, 8])
    decoding = decoding_times(bench, contexts)
    last, far = lengths[-1], contexts[-1]
    slower = {name: ratios(training[last][name], training[last][TRANSFORMER]) for name in WITH_ATTENTION}
    flat, grown = (ratios(decoding[far][name], decoding[contexts[0]][name]) for name in ("LSTM", TRANSFORMER))
    recency = [near[0] - near[-1] for near in near_far[PLAIN]]

    claims = [
        Claim(
            "A recurrent network that must keep the whole source in one vector recalls less than one with attention.",
            "Bahdanau et al., 2015, section 1 and figure 2; Cho et al., 2014",
            "; ".join(f"{name} {percent(right[name])}" for name in (*WITH_ATTENTION, *WITHOUT)) + " of values right.",
            all_of(less(right[without], right[attends]) for attends, without in zip(WITH_ATTENTION, WITHOUT, strict=True)),
        ),
        Claim(
            "The longer the source, the less of it such a vector holds.",
            "Cho et al., 2014, section 4; Bahdanau et al., 2015, figure 2",
            f"{PLAIN}: " + ", ".join(f"{percent(held[n])} right of {n} items" for n in sorted(held)) + f"; {100 / VALUES:.0f} % by guessing.",
            less(held[max(held)], held[min(held)]),
        ),
        Claim(
            "What such a network recalls is what came last.",
            "Bengio et al., 1994; Hochreiter & Schmidhuber, 1997: gradients vanish over time",
            f"{PLAIN}: {said([100 * n[0] for n in near_far[PLAIN]])} % right for the last item, "
            f"{said([100 * n[-1] for n in near_far[PLAIN]])} % for the first.",
            above(recency, 0.0),
        ),
        Claim(
            "The Transformer recalls alike at every distance.",
            "Vaswani et al., 2017, table 1: paths of length 1",
            f"{said([100 * n[0] for n in near_far[TRANSFORMER]])} % right for the last item, "
            f"{said([100 * n[-1] for n in near_far[TRANSFORMER]])} % for the first (alike: within 5 points).",
            within([n[0] - n[-1] for n in near_far[TRANSFORMER]], 0.0, 0.05),
        ),
        Claim(
            "The Transformer learns this in fewer steps than recurrent networks with attention.",
            "Vaswani et al., 2017, table 2, for the cost of learning to translate",
            "Mean loss over training: "
            + ", ".join(f"{name} {said(slow[name])}" for name in (TRANSFORMER, *WITH_ATTENTION)) + ".",
            all_of(less(slow[TRANSFORMER], slow[name]) for name in WITH_ATTENTION),
        ),
        Claim(
            "The Transformer trains faster, for it reads all tokens at once.",
            "Vaswani et al., 2017, table 1 and section 4",
            f"A training step over {last} tokens: LSTM {said(slower['LSTM'])}, GRU "
            f"{said(slower['GRU'])} times the Transformer's time, on {torch.get_num_threads()} thread(s).",
            all_of(above(r, 1.0) for r in slower.values()),
        ),
        Claim(
            "A recurrent decoder's step takes the same time at any length.",
            "its state is of constant size",
            f"From {contexts[0]} to {far:,} tokens: LSTM {said(flat)} times, Transformer "
            f"{said(grown)} times (the same: within 25 %).",
            within(flat, 1.0, 0.25),
        ),
        Claim(
            "A Transformer decoder's step takes longer the more it has written.",
            "it reads all keys and values again",
            f"At {far:,} tokens {said(grown)} times as long as at {contexts[0]}.",
            above(grown, 1.0),
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        Plot(
            "Recall by distance",
            "items from the end",
            [Curve(name, mean_by_distance(rows)) for name, rows in near_far.items()],
            f"Percent of values right, mean over seeds, for the last item of the source (1) to the first ({ITEMS}). "
            f"By guessing: {100 / VALUES:.0f}.",
            from_zero=True,
        ),
        Dots(
            "Values right", "percent, held-out", {name: [100 * r for r in right[name]] for name in DESIGNS},
            SEEDS,
        ),
        Plot("Training loss (first seed)", "step", first_curves(runs), from_zero=True),
        Plot(
            "A training step",
            "tokens of a row",
            [Curve(name, [(n, 1e3 * medians(taken)[name]) for n, taken in training.items()]) for name in DESIGNS],
            "Milliseconds, forward and backward, 8 rows.",
            log=True,
        ),
        Plot(
            "A decoding step",
            "tokens so far",
            [Curve(name, [(n, 1e3 * medians(taken)[name]) for n, taken in decoding.items()]) for name in decoding[far]],
            "Milliseconds for the next token of 8 rows.",
            log=True,
            from_zero=True,
        ),
        Table(
            "All numbers",
            ("design", "parameters", "right, %", f"ms a training step, {last} tokens", f"ms a decoding step, {far:,} tokens"),
            [
                (name, runs[name][0].parameters, percent(right[name])[:-2],
                 f"{1e3 * medians(training[last])[name]:.1f}",
                 f"{1e3 * medians(decoding[far])[name]:.2f}" if name in decoding[far] else "not measured")
                for name in DESIGNS
            ],
        ),
    ]  # fmt: skip
    return Result(
        "Transformer, recurrence, convolution",
        "A recurrent network reads token by token into a state of fixed size. Attention keeps every token and looks where it "
        "must. What does that buy, in recall and in time?",
        claims,
        figures,
        f"Encoder-decoders of 2+2 layers, d_model 64, pre-norm; recurrent decoders attend to the source unless it says no "
        f"attention, where also the encoder reads one way. CNN: gated convolutions of width 3 with attention to the source. "
        f"Task: {ITEMS} items, each a key and one of {VALUES} values; asked for a key, say its value. {steps} steps of 64 rows, "
        f"cosine, one learning rate (5e-3) for all, {len(bench.seeds(3))} seeds.\n\nSpeed: d_model {bench.size(128, 16)}, "
        "8 rows, fresh weights, fp32, designs in turns.",
    )


def config(name: str, problem: Problem, **size: Any) -> ModelConfig:
    """A design fitted to a task."""
    return design(problem, **{**DESIGNS[name], **size})


def capacity(bench: Bench, items: int, steps: int) -> list[float]:
    """Share of values right of a network without attention whose source has so many items, a run a seed."""
    problem = recall(items, items, VALUES)
    design = config(PLAIN, problem)
    return [
        learn(design, sized(bench, problem), seed=seed, steps=steps, lr=5e-3).accuracy
        for seed in bench.seeds(3)
    ]


@torch.inference_mode()
def by_distance(model: Seq2Seq, batches: int) -> list[float]:
    """Share of values right, from the last item of the source to the first."""
    model.eval()
    right, asked = torch.zeros(ITEMS), torch.zeros(ITEMS)
    for number in range(HELD_OUT, HELD_OUT + batches):
        batch = PROBLEM.batch(0, number)
        hit = (model.head(features(model, batch)).argmax(-1) == batch.labels).float()
        distance = ITEMS - 1 - place(batch)
        right.index_add_(0, distance.flatten(), hit.flatten())
        asked.index_add_(0, distance.flatten(), torch.ones(hit.numel()))
    return list((right / asked).tolist())


def place(batch: Batch) -> torch.Tensor:
    """Where in the source the item stands that each query asks for: (B, T)."""
    keys = (batch.source - FIRST) // VALUES  # recall's tokens: key * values + value
    wanted = batch.target - (FIRST + ITEMS * VALUES)
    return (keys[:, None, :] == wanted[:, :, None]).int().argmax(-1)


def mean_by_distance(rows: list[list[float]]) -> list[tuple[float, float]]:
    """(items from the end, percent right)."""
    return [(i + 1, 100 * sum(values) / len(values)) for i, values in enumerate(zip(*rows, strict=True))]


def training_times(bench: Bench, length: int) -> dict[str, list[float]]:
    """Seconds of forward and backward pass of every design."""
    problem = copying(length, 64)
    batch = problem.batch(bench.seed, 0, 8)

    models = {name: build(config(name, problem, **width(bench)), bench.seed).train() for name in DESIGNS}
    return race({name: partial(backward, model, batch) for name, model in models.items()}, bench.size(5, 2))


def decoding_times(bench: Bench, contexts: list[int]) -> dict[int, dict[str, list[float]]]:
    """Seconds of the next token of 8 rows that have so many, for every length and design, all in turns."""
    problem = copying(8, 64)._replace(max_len=contexts[-1] + 256)
    token, runners = torch.full((8, 1), FIRST), {}
    for context in contexts:
        for name in (TRANSFORMER, "LSTM", "GRU", "CNN"):
            model = build(config(name, problem, **width(bench)), bench.seed)
            stepper = Stepper(model, problem.batch(1, 0, 8).source, context + 256)
            for _ in range(context // min(context, 512)):
                stepper.feed(torch.full((8, min(context, 512)), FIRST))
            runners[context, name] = partial(stepper.feed, token)
    taken = race(runners, bench.size(15, 3))
    return {n: {name: times for (at, name), times in taken.items() if at == n} for n in contexts}


def width(bench: Bench) -> dict[str, int]:
    """The size of models whose speed is measured."""
    return bench.size({"d_model": 128, "d_ff": 512}, {"d_model": 16, "d_ff": 16})
