"""Position schemes beyond the training length, and the size of embeddings next to positions."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cosine_similarity

from polyhead import Choice, build
from polyhead.core.errors import UserError
from polyhead.core.registry import POSITION
from polyhead.cost.fake_tensors import measure_flops
from polyhead_lab.registry import (
    EXPERIMENTS,
    SEEDS_NOTE,
    TEXT,
    TOY,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ResultTable,
    SeedValues,
    mean_curves,
)
from polyhead_lab.short_training import (
    COPY_AND_RECALL,
    SyntheticTask,
    TrainingResult,
    describe_steps,
    evaluate_held_out,
    make_copy_task,
    make_delay_task,
    make_small_config,
    run_backward,
    run_short_training,
    shrink_if_quick,
    time_training_steps,
    train_by_task,
    verdict_by_task,
)
from polyhead_lab.statistics import (
    format_mean,
    time_ratios,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
    verdict_within,
)
from polyhead_lab.text_task import METHOD, make_text_task, tabulate

PRESS = "Press et al., 2022"
_TRAIN_LEN = 24  # training length
_LENGTH_FACTORS = (1, 2, 4)
_N_SYMBOLS = 16
_CHANCE_LOSS = math.log(_N_SYMBOLS)
_SAME_MARGIN = 0.1  # difference in nats per token that counts as no worse
_SCHEMES = ("none", "sinusoidal", "learned", "shaw", "t5", "rope", "alibi")
# with these options every bucket occurs in training, as in Press et al.
_SCHEME_OPTIONS = {"t5": {"buckets": 16, "max_distance": 16}}
_SCALED_ROPE = {
    "rope, linear": {"scaling": "linear", "factor": 4.0},
    "rope, ntk": {"scaling": "ntk", "factor": 4.0},
    "rope, yarn": {"scaling": "yarn", "factor": 4.0, "original_len": _TRAIN_LEN},
}

LossesByLength = dict[str, dict[int, list[float]]]
"""scheme -> length -> loss of every seed; a length that the scheme refuses is missing."""


class SweepResult(NamedTuple):
    """Losses of all schemes, and the errors of schemes that refuse a length."""

    losses: LossesByLength
    refusals: dict[str, str]  # scheme -> error message
    first_runs: dict[str, TrainingResult]  # run of the first seed


@EXPERIMENTS.register("positions")
def measure_positions(lab: LabContext) -> ExperimentResult:
    """Position schemes at lengths beyond the training length: which of them extrapolate."""
    result = sweep_schemes(lab)
    losses, far_len = result.losses, _TRAIN_LEN * _LENGTH_FACTORS[-1]
    twice_len = _TRAIN_LEN * _LENGTH_FACTORS[1]

    def format_losses(name: str) -> str:
        by_length = losses[name]
        return ", ".join(f"{format_mean(values)} at {length}" for length, values in by_length.items())

    def extrapolates(name: str, length: int) -> bool | None:
        return verdict_less(losses[name][length], losses[name][_TRAIN_LEN], -_SAME_MARGIN)

    def loss_growth(name: str) -> list[float]:
        return [b - a for a, b in zip(losses[name][_TRAIN_LEN], losses[name][far_len], strict=True)]

    lab.info("toy task measured; now ALiBi on text")
    text = [make_text_task(64 * n) for n in (1, 4)]
    runs = train_by_task(lab, {TEXT: (text[0], 200)}, {"alibi": {"position": "alibi"}})[TEXT]["alibi"]
    near, far = ([evaluate_held_out(run.model, task)["loss"] for run in runs] for task in text)

    claims = [
        Claim(
            "Sinusoids may let a model extrapolate to sequences longer than those it was trained on.",
            "Vaswani et al., 2017, section 3.5 (a hypothesis)",
            f"Loss {format_losses('sinusoidal')} (extrapolates: at most {_SAME_MARGIN} worse at "
                    f"{twice_len}).",
            extrapolates("sinusoidal", twice_len), TOY,
        ),
        Claim(
            "Learned positions end at the training length.",
            "Gehring et al., 2017; Press et al., 2022, section 2",
            f"At {twice_len} tokens: {result.refusals.get('learned', 'no refusal')}.",
            "learned" in result.refusals,
        ),
        Claim(
            "Clipped relative positions generalise to lengths not seen in training.",
            "Shaw et al., 2018, section 3.2",
            f"Loss {format_losses('shaw')}.",
            extrapolates("shaw", far_len), TOY,
        ),
        Claim(
            "T5's buckets extrapolate.",
            "Press et al., 2022, section 2.2: better than rotary, at a cost",
            f"Loss {format_losses('t5')}.",
            extrapolates("t5", far_len), TOY,
        ),
        Claim(
            "Rotary positions extrapolate better than sinusoidal ones, but not well.",
            "Press et al., 2022, section 2.2",
            f"Loss of rope {format_losses('rope')}; it grows by {format_mean(loss_growth('rope'))} from "
            f"{_TRAIN_LEN} to {far_len} tokens, sinusoidal's by {format_mean(loss_growth('sinusoidal'))}.",
            verdict_all([verdict_less(loss_growth("rope"), loss_growth("sinusoidal")),
                verdict_less([_SAME_MARGIN] * len(loss_growth("rope")), loss_growth("rope"))]), TOY,
        ),
        Claim(
            "ALiBi extrapolates: its loss does not grow with the length.",
            "Press et al., 2022, section 3",
            f"Loss {format_losses('alibi')} (does not grow: at most {_SAME_MARGIN} worse at {far_len}).",
            extrapolates("alibi", far_len), TOY,
        ),
        Claim("ALiBi extrapolates: its loss does not grow with the length.", f"{PRESS}, section 3",
            f"64 bytes: {format_mean(near)}; 256 bytes: {format_mean(far)}.", verdict_less(far, near), TEXT),
        Claim(
            "ALiBi is as good as other schemes at the training length.",
            "Press et al., 2022, section 3, on natural language",
            f"At {_TRAIN_LEN} tokens: alibi {format_mean(losses['alibi'][_TRAIN_LEN])}, rope "
            f"{format_mean(losses['rope'][_TRAIN_LEN])}. Its bias decreases steadily with distance, but "
            "this task requires one exact distance.",
            verdict_less(losses["alibi"][_TRAIN_LEN], losses["rope"][_TRAIN_LEN], -_SAME_MARGIN), TOY,
        ),
        Claim(
            "A causal decoder learns some order without positions.",
            "Haviv et al., 2022; Kazemnejad et al., 2023",
            f"Loss {format_losses('none')}; the chance level is {_CHANCE_LOSS:.2f} (some: at least "
                    "10 % below).",
            verdict_below(losses["none"][_TRAIN_LEN], 0.9 * _CHANCE_LOSS), TOY,
        ),
        Claim(
            "Spacing rope's angles more closely extends a trained model without further training.",
            "bloc97, 2023 (NTK-aware); Peng et al., 2023 (YaRN); Chen et al., 2023 (linear, with further "
            "training)",
            f"At {far_len} tokens, factor {far_len // _TRAIN_LEN}: rope "
            f"{format_mean(losses['rope'][far_len])}, "
            + ", ".join(f"{name.split(', ')[1]} {format_mean(losses[name][far_len])}"
                for name in _SCALED_ROPE)
            + ". Held if ntk and yarn are better than plain rope.",
            verdict_all(verdict_less(losses[name][far_len], losses["rope"][far_len]) for name in ("rope, ntk",
                "rope, yarn")), TOY,
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        LinePlot(
            "Held-out loss beyond the training length",
            "tokens",
            mean_curves({name: losses[name] for name in _SCHEMES if len(losses[name]) > 1}),
            f"Trained on {_TRAIN_LEN} tokens. By chance the loss is {_CHANCE_LOSS:.2f}; above that, a model "
            "is wrong and confident. Learned positions end at the training length and are not plotted.",
            log=True,
        ),
        LinePlot(
            "Rope, and rope with scaled angles",
            "tokens",
            mean_curves({name: losses[name] for name in ("rope", *_SCALED_ROPE)}),
            "The same trained weights; only the angles are scaled, by a factor of 4.",
            log=True,
        ),
        DotPlot(
            f"Held-out loss at the training length ({_TRAIN_LEN})",
            "nats per token",
            {name: losses[name][_TRAIN_LEN] for name in _SCHEMES},
            SEEDS_NOTE,
        ),
        LinePlot(
            "Training loss (first seed)",
            "step",
            {name: run.curve for name, run in result.first_runs.items() if run.curve},
            from_zero=True,
        ),
        ResultTable(
            "All numbers",
            ("positions", *(f"loss at {_TRAIN_LEN * s}" for s in _LENGTH_FACTORS)),
            [
                (name, *(format_mean(by[_TRAIN_LEN * s]) if _TRAIN_LEN * s in by else "refused"
                    for s in _LENGTH_FACTORS))
                for name, by in losses.items()
            ],
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "Positions beyond the training length",
        "Attention treats its input as a set, so positions must be "
        "encoded. Some encodings still work beyond the training length, others do not.",
        claims,
        figures,
        "A decoder of 2 layers (after an encoder of one layer that reads a single dummy token), d_model 64, "
        f"4 heads, pre-norm. Task: output the token that was read two positions before, 1 of {_N_SYMBOLS}; "
        "only positions are needed. Shaw's distances are clipped at 16 and T5's last bucket starts there, so "
        f"that training covers all of them. {lab.pick_size(150, 4)} steps of 32 rows of {_TRAIN_LEN} tokens, "
        f"cosine, {len(lab.make_seeds(5))} seeds. Losses at other lengths are means over all tokens of fresh "
        "rows of that length. Other tasks, especially natural language, depend less on exact distances.",
    )


def sweep_schemes(lab: LabContext) -> SweepResult:
    """Train every scheme and evaluate it at every length; rope also with its angles scaled after training."""
    problem = shrink_if_quick(lab, make_delay_task(_TRAIN_LEN, symbols=_N_SYMBOLS)._replace(rows=32))
    result = SweepResult({}, {}, {})
    for seed in lab.make_seeds(5):
        for name in _SCHEMES:
            config = make_small_config(
                problem,
                position=Choice(name, **_SCHEME_OPTIONS.get(name, {})),
                n_layers=1,
                n_decoder_layers=2,
            )
            run = run_short_training(config, problem, seed=seed, steps=lab.pick_size(150, 4), lr=5e-3)
            result.first_runs.setdefault(name, run)
            add_losses(lab, run, name, result)
            if name == "rope":
                for scaled, options in _SCALED_ROPE.items():
                    scaled_config = config.model_copy(
                        update={"position": POSITION.check(Choice("rope", **options))}
                    )
                    model = build(scaled_config)
                    model.load_state_dict(run.model.state_dict())
                    add_losses(lab, run._replace(model=model), scaled, result)
            lab.info(f"seed {seed}, {name}: loss {run.loss:.3f}")
    order = (*_SCHEMES, *_SCALED_ROPE)
    return result._replace(losses={name: result.losses[name] for name in order})


def add_losses(lab: LabContext, run: TrainingResult, name: str, result: SweepResult) -> None:
    """Add the losses of a run at every length to ``result``."""
    by_length = result.losses.setdefault(name, {})
    for factor in _LENGTH_FACTORS:
        problem = shrink_if_quick(
            lab, make_delay_task(_TRAIN_LEN * factor, symbols=_N_SYMBOLS)._replace(rows=32)
        )
        try:
            by_length.setdefault(problem.max_len, []).append(evaluate_held_out(run.model, problem)["loss"])
        except UserError as error:
            del by_length[problem.max_len]
            result.refusals.setdefault(name, str(error))


_SOURCE = "Vaswani et al., 2017, section 3.4"
_TASK = make_copy_task(64, 256)  # positions and tokens whose vectors are measured
_WITH_FACTOR, _NO_FACTOR = "sinusoidal, times sqrt(d_model)", "sinusoidal, no factor"
_LEARNED_FACTOR, _LEARNED_ROWS = "learned, times sqrt(d_model)", "learned, no factor"
_DESIGNS: dict[str, dict[str, Any]] = {
    _WITH_FACTOR: {"position": "sinusoidal", "scale_embedding": True},
    _NO_FACTOR: {"position": "sinusoidal", "scale_embedding": False},
    _LEARNED_FACTOR: {"position": "learned", "scale_embedding": True},
    _LEARNED_ROWS: {"position": "learned", "scale_embedding": False},
}
_WORSE_MARGIN = 0.1  # difference in nats per token that counts as worse


@EXPERIMENTS.register("embedding")
def measure_embedding_scale(lab: LabContext) -> ExperimentResult:
    """The factor sqrt(d_model): size of embeddings against positions, and training with it and without."""
    widths = lab.pick_size([16, 32, 64, 128, 256, 512, 1024], [16, 64])
    inputs = {
        name: {d: [measure_inputs(d, seed, **changes) for seed in lab.make_seeds(5)] for d in widths}
        for name, changes in _DESIGNS.items()
    }
    lab.info("initial vectors measured; now training with and without the factor")
    runs = train_by_task(lab, COPY_AND_RECALL, _DESIGNS)
    ratios = {name: {d: [x.ratio for x in of[d]] for d in widths} for name, of in inputs.items()}
    cosines = {name: {d: [x.cosine for x in of[d]] for d in widths} for name, of in inputs.items()}
    first, last = widths[0], widths[-1]
    growth = math.log(last / first)
    growths = time_ratios(ratios[_NO_FACTOR][last], ratios[_NO_FACTOR][first])
    exponents = [math.log(ratio) / growth for ratio in growths]

    claims = [
        Claim(
            "Times sqrt(d_model), the row of a token is about as large as a sinusoidal position, whatever "
            "d_model.",
            f"{_SOURCE}, where no reason is given; this is the usual one",
            f"Norm of the row over norm of the position: between "
            f"{min(map(fmean, ratios[_WITH_FACTOR].values())):.3f} and "
            f"{max(map(fmean, ratios[_WITH_FACTOR].values())):.3f} for d_model from {first} to {last}; in "
            f"closed form sqrt(2) = 1.414 (about as large: within a factor of 2).",
            verdict_all(
                verdict
                for values in ratios[_WITH_FACTOR].values()
                for verdict in (verdict_above(values, 0.5), verdict_below(values, 2.0))
            ),
        ),
        Claim(
            "Without the factor positions drown the tokens, and the more so the wider the model.",
            f"the usual reason for the factor of {_SOURCE}",
            f"The same ratio falls from {fmean(ratios[_NO_FACTOR][first]):.3f} to "
            f"{fmean(ratios[_NO_FACTOR][last]):.3f}, as d_model^{format_mean(exponents)}. The cosine of two "
            f"tokens at the same position is {format_mean(cosines[_NO_FACTOR][last])} without the factor and "
            f"{format_mean(cosines[_WITH_FACTOR][last])} with it (drown: below a tenth at d_model = {last}; "
            "exponent: -0.5 ± 0.05).",
            verdict_all(
                [verdict_below(ratios[_NO_FACTOR][last], 0.1), verdict_within(exponents, -0.5, 0.05)]
            ),
        ),
        Claim(
            "With sinusoidal positions a model learns faster with the factor than without.",
            f"implied where the factor is used; not measured in {_SOURCE}",
            f"Loss, {runs.compare(_WITH_FACTOR, _NO_FACTOR)} (faster: less on average over training).",
            verdict_by_task(runs.mean_loss, _WITH_FACTOR, _NO_FACTOR),
            TOY,
        ),
        Claim(
            "Learned positions are as small as the rows of tokens without any factor.",
            "Radford et al., 2019 (GPT-2) and Devlin et al., 2018 (BERT): no factor, one standard deviation",
            f"Norm of the row over norm of the position at d_model = {last}: "
            f"{format_mean(ratios[_LEARNED_ROWS][last])} without the factor, "
            f"{format_mean(ratios[_LEARNED_FACTOR][last])} with it (as small: within 10 %).",
            verdict_all(verdict_within(values, 1.0, 0.1) for values in ratios[_LEARNED_ROWS].values()),
        ),
        Claim(
            "With learned positions a model learns as well without the factor.",
            "Radford et al., 2019 (GPT-2) and Devlin et al., 2018 (BERT) do without",
            f"Loss, {runs.compare(_LEARNED_ROWS, _LEARNED_FACTOR)} (as well: at most {_WORSE_MARGIN} nats "
            "worse).",
            runs.verdict_no_worse(_LEARNED_ROWS, _LEARNED_FACTOR, _WORSE_MARGIN),
            TOY,
        ),
    ]
    figures: list[Figure] = [
        LinePlot(
            "Norm of a token's row over norm of a position, before training",
            "d_model",
            mean_curves(ratios),
            "Near 1 a vector shows which token it is as much as where it is.",
            log=True,
        ),
        LinePlot(
            "Cosine of two tokens at the same position, before training",
            "d_model",
            mean_curves(cosines),
            "At 1 the model cannot tell one token from another.",
            log=True,
            from_zero=True,
        ),
        *runs.make_figures(),
        ResultTable(
            "All numbers",
            ("design", f"row / position, d_model {first}", f"row / position, d_model {last}",
             f"cosine, d_model {last}", *(f"loss, {task}" for task in COPY_AND_RECALL)),
            [
                (name, format_mean(ratios[name][first]), format_mean(ratios[name][last]),
                 format_mean(cosines[name][last]), *(format_mean(of[name]) for of in runs.loss.values()))
                for name in _DESIGNS
            ],
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "Why embeddings are multiplied by sqrt(d_model)",
        "A token's row and a position are added, and the model sees only the sum. Rows begin with the "
        "variance 1/d_model, sines and cosines have the mean square 1/2. Does the factor sqrt(d_model) "
        "prevent that the sum shows only where a token is, and not which one it is?",
        claims,
        figures,
        f"Vectors: {len(lab.make_seeds(5))} Xavier-initialised models for each d_model; all of 256 tokens, "
        "64 positions. The norm of a sinusoidal position is sqrt(d_model / 2).\n\nTrainings: "
        "encoder-decoders of 2+2 layers, d_model 64, 4 heads, pre-norm, one table for source, target and "
        f"output; {describe_steps(lab, COPY_AND_RECALL)} The factor also multiplies "
        "the effect of every step of the optimizer on the rows; the trainings do not tell that apart from "
        "the size at the start.",
    )


class InputSize(NamedTuple):
    """Size of the two parts of a model's input, before training."""

    ratio: float  # norm of a token's row, times the factor, over norm of a position
    cosine: float  # of the vectors of two tokens at the same position, mean


@torch.inference_mode()
def measure_inputs(d_model: int, seed: int, *, position: str, scale_embedding: bool) -> InputSize:
    """Measure the rows of all tokens against all positions of a newly initialised model."""
    config = make_small_config(
        _TASK, d_model=d_model, n_layers=1, d_ff=16, position=position, scale_embedding=scale_embedding
    )
    embedding = build(config, seed).eval().encoder_embedding
    rows = embedding.token.weight * embedding.scale  # (V, C)
    positions = embedding.position.embed(torch.zeros(1, _TASK.max_len - 1, d_model), None)[0]  # (T, C)
    inputs = rows[:, None] + positions  # (V, T, C)
    return InputSize(
        float(rows.norm(dim=-1).mean() / positions.norm(dim=-1).mean()),
        float(cosine_similarity(inputs[0::2], inputs[1::2], dim=-1).mean()),
    )


_COST_SCHEMES = ("none", "sinusoidal", "learned", "rope", "alibi", "t5", "shaw")


@EXPERIMENTS.register("position-cost")
def measure_position_cost(lab: LabContext) -> ExperimentResult:
    """Position schemes: operations and time of a training step, against sinusoidal positions."""
    lengths = first, last = lab.pick_size((64, 256), (8, 16))
    flops: dict[int, SeedValues] = {}
    ratios: dict[int, SeedValues] = {}
    for n in lengths:
        text = make_text_task(n, 8)
        flops[n] = {name: [float(count_step_flops(text, name))] for name in _COST_SCHEMES}
        designs = {name: make_small_config(text, position=name) for name in _COST_SCHEMES}
        times = time_training_steps(lab, designs, text.batch(1, 0), lab.pick_size(15, 3))
        ratios[n] = {name: time_ratios(times[name], times["sinusoidal"]) for name in _COST_SCHEMES}
        lab.info(f"{n} tokens measured")
    extra = {name: int(values[0] - flops[last]["sinusoidal"][0]) for name, values in flops[last].items()}
    claims = [
        Claim(sentence, source, f"{first} tokens: {format_mean(ratios[first][name])} times as long as with "
            f"sinusoidal positions; {last} tokens: {format_mean(ratios[last][name])} times.",
            verdict(ratios[last][name], bound))
        for name, sentence, source, verdict, bound in (
            ("shaw", "Relative positions by Shaw cost less than a tenth of the speed.",
             "Shaw et al., 2018, section 3.3: 7 %", verdict_below, 1 / 0.9),
            ("t5", "T5's buckets make training slower.", f"{PRESS}, figure 2", verdict_above, 1.0),
            ("rope", "Rotary positions make training slower.", f"{PRESS}, figure 2", verdict_above, 1.0),
            ("alibi", "ALiBi makes training at most 5 % slower.", f"{PRESS}, section 3", verdict_below, 1.05),
        )
    ] + [
        Claim("Of all schemes only that of Shaw needs more matrix products.", "by counting",
            f"Operations with {last} tokens more than with sinusoidal positions: {extra['shaw']:,}; all "
            f"others: {sum(extra.values()) - extra['shaw']}.",
            [name for name, n in extra.items() if n] == ["shaw"]),
    ]  # fmt: skip
    curves = {name: [(n, median(ratios[n][name])) for n in lengths] for name in _COST_SCHEMES}
    return ExperimentResult(
        "What positions cost",
        "Sinusoids are added once to the input. Other schemes work in every layer: on queries and keys, or "
        "on the score of every pair of tokens. How much work is that, and how much time?",
        claims,
        [
            LinePlot("Time of a step, relative to sinusoidal positions", "tokens", curves, log=True),
            tabulate({f"{n} tokens, operations": flops[n] for n in lengths}
                | {f"{n} tokens, time": ratios[n] for n in lengths}),
        ],
        f"{METHOD}Forward and backward pass of 8 rows, without the optimizer; operations are those of matrix "
        "products. Designs took turns.",
    )  # fmt: skip


def count_step_flops(problem: SyntheticTask, position: str) -> int:
    """Operations of the matrix products of a training step with a position scheme."""
    model = build(make_small_config(problem, position=position), 1).train()
    return measure_flops(partial(run_backward, model, problem.batch(1, 0)))
