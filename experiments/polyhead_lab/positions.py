"""Position schemes at lengths beyond the training length."""

from __future__ import annotations

import math
from typing import NamedTuple

from polyhead import Choice, build
from polyhead.core.errors import UserError
from polyhead.core.registry import POSITION
from polyhead.viz.plot import Curve
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import (
    SEEDS_NOTE,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LinePlot,
    ResultTable,
    mean_curves,
)
from polyhead_lab.short_training import (
    TrainingResult,
    evaluate_held_out,
    make_small_config,
    run_short_training,
    shrink_if_quick,
)
from polyhead_lab.statistics import format_mean, verdict_all, verdict_below, verdict_less
from polyhead_lab.tasks import make_delay_task

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

    claims = [
        Claim(
            "Sinusoids may let a model extrapolate to sequences longer than those it was trained on.",
            "Vaswani et al., 2017, section 3.5 (a hypothesis)",
            f"Loss {format_losses('sinusoidal')} (extrapolates: at most {_SAME_MARGIN} worse at "
                    f"{twice_len}).",
            extrapolates("sinusoidal", twice_len),
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
            extrapolates("shaw", far_len),
        ),
        Claim(
            "T5's buckets extrapolate.",
            "Press et al., 2022, section 2.2: better than rotary, at a cost",
            f"Loss {format_losses('t5')}.",
            extrapolates("t5", far_len),
        ),
        Claim(
            "Rotary positions extrapolate better than sinusoidal ones, but not well.",
            "Press et al., 2022, section 2.2",
            f"Loss of rope {format_losses('rope')}; it grows by {format_mean(loss_growth('rope'))} from "
            f"{_TRAIN_LEN} to {far_len} tokens, sinusoidal's by {format_mean(loss_growth('sinusoidal'))}.",
            verdict_all([verdict_less(loss_growth("rope"), loss_growth("sinusoidal")),
                verdict_less([_SAME_MARGIN] * len(loss_growth("rope")), loss_growth("rope"))]),
        ),
        Claim(
            "ALiBi extrapolates: its loss does not grow with the length.",
            "Press et al., 2022, section 3",
            f"Loss {format_losses('alibi')} (does not grow: at most {_SAME_MARGIN} worse at {far_len}).",
            extrapolates("alibi", far_len),
        ),
        Claim(
            "ALiBi is as good as other schemes at the training length.",
            "Press et al., 2022, section 3, on natural language",
            f"At {_TRAIN_LEN} tokens: alibi {format_mean(losses['alibi'][_TRAIN_LEN])}, rope "
            f"{format_mean(losses['rope'][_TRAIN_LEN])}. Its bias decreases steadily with distance, but "
            "this task requires one exact distance.",
            verdict_less(losses["alibi"][_TRAIN_LEN], losses["rope"][_TRAIN_LEN], -_SAME_MARGIN),
        ),
        Claim(
            "A causal decoder learns some order without positions.",
            "Haviv et al., 2022; Kazemnejad et al., 2023",
            f"Loss {format_losses('none')}; the chance level is {_CHANCE_LOSS:.2f} (some: at least "
                    "10 % below).",
            verdict_below(losses["none"][_TRAIN_LEN], 0.9 * _CHANCE_LOSS),
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
                "rope, yarn")),
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
            [Curve(name, run.curve) for name, run in result.first_runs.items() if run.curve],
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
