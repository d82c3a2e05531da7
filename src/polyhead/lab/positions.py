"""Positions beyond the length that was trained on."""

from __future__ import annotations

import math
from statistics import fmean
from typing import NamedTuple

from polyhead.analysis.charts import Curve
from polyhead.errors import UserError
from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.learn import Learned, design, judge, learn, sized
from polyhead.lab.result import SEEDS, Claim, Dots, Figure, Plot, Result, Table
from polyhead.lab.tasks import delaying
from polyhead.lab.verdict import all_of, below, less, said
from polyhead.models.build import build
from polyhead.registry import POSITION, Choice

LENGTH = 24  # trained on
STRETCH = (1, 2, 4)
SYMBOLS = 16
CHANCE = math.log(SYMBOLS)
SAME = 0.1  # nats a token that count as no worse
SCHEMES = ("none", "sinusoidal", "learned", "shaw", "t5", "rope", "alibi")
# so that training sees every bucket, as it does in Press et al.
OPTIONS = {"t5": {"buckets": 16, "max_distance": 16}}
SCALED = {
    "rope, linear": {"scaling": "linear", "factor": 4.0},
    "rope, ntk": {"scaling": "ntk", "factor": 4.0},
    "rope, yarn": {"scaling": "yarn", "factor": 4.0, "original_len": LENGTH},
}

Losses = dict[str, dict[int, list[float]]]
"""scheme -> length -> loss of every seed; a scheme that refuses a length has none there."""


class Swept(NamedTuple):
    """The losses of all schemes, and what some of them refused."""

    losses: Losses
    refused: dict[str, str]  # scheme -> what it said
    first: dict[str, Learned]  # the run of the first seed


@LAB.register("positions")
def positions(bench: Bench) -> Result:
    """Position schemes at lengths beyond the training length: who still knows where it is."""
    swept = sweep(bench)
    losses, far = swept.losses, LENGTH * STRETCH[-1]
    twice = LENGTH * STRETCH[1]

    def at(name: str) -> str:
        by_length = losses[name]
        return ", ".join(f"{said(values)} at {length}" for length, values in by_length.items())

    def extends(name: str, length: int) -> bool | None:
        return less(losses[name][length], losses[name][LENGTH], -SAME)

    def growth(name: str) -> list[float]:
        return [b - a for a, b in zip(losses[name][LENGTH], losses[name][far], strict=True)]

    claims = [
        Claim(
            "Sinusoids may let a model extrapolate to sequences longer than those it was trained on.",
            "Vaswani et al., 2017, section 3.5 (a hypothesis)",
            f"Loss {at('sinusoidal')} (extrapolates: no more than {SAME} worse at {twice}).",
            extends("sinusoidal", twice),
        ),
        Claim(
            "Learned positions end where training ended.",
            "Gehring et al., 2017; Press et al., 2022, section 2",
            f"At {twice} tokens: {swept.refused.get('learned', 'no refusal')}.",
            "learned" in swept.refused,
        ),
        Claim(
            "Clipped relative positions generalise to lengths not seen in training.",
            "Shaw et al., 2018, section 3.2",
            f"Loss {at('shaw')}.",
            extends("shaw", far),
        ),
        Claim(
            "T5's buckets extrapolate.",
            "Press et al., 2022, section 2.2: better than rotary, at a cost",
            f"Loss {at('t5')}.",
            extends("t5", far),
        ),
        Claim(
            "Rotary positions extrapolate better than sinusoidal ones, but not well.",
            "Press et al., 2022, section 2.2",
            f"Loss of rope {at('rope')}; it grows by {said(growth('rope'))} from {LENGTH} to {far} tokens, "
            f"sinusoidal's by {said(growth('sinusoidal'))}.",
            all_of([less(growth("rope"), growth("sinusoidal")), less([SAME] * len(growth("rope")), growth("rope"))]),
        ),
        Claim(
            "ALiBi extrapolates: its loss does not grow with the length.",
            "Press et al., 2022, section 3",
            f"Loss {at('alibi')} (does not grow: no more than {SAME} worse at {far}).",
            extends("alibi", far),
        ),
        Claim(
            "ALiBi loses nothing at the training length against other schemes.",
            "Press et al., 2022, section 3, on natural language",
            f"At {LENGTH} tokens: alibi {said(losses['alibi'][LENGTH])}, rope "
            f"{said(losses['rope'][LENGTH])}. Its bias falls steadily with distance, and this task asks for one "
            "exact distance.",
            less(losses["alibi"][LENGTH], losses["rope"][LENGTH], -SAME),
        ),
        Claim(
            "A causal decoder learns something of order without any positions.",
            "Haviv et al., 2022; Kazemnejad et al., 2023",
            f"Loss {at('none')}; by chance it would be {CHANCE:.2f} (something: at least 10 % below).",
            below(losses["none"][LENGTH], 0.9 * CHANCE),
        ),
        Claim(
            "Spacing rope's angles more closely extends a trained model without training it again.",
            "bloc97, 2023 (NTK-aware); Peng et al., 2023 (YaRN); Chen et al., 2023 (linear, which they train again)",
            f"At {far} tokens, factor {far // LENGTH}: rope {said(losses['rope'][far])}, "
            + ", ".join(f"{name.split(', ')[1]} {said(losses[name][far])}" for name in SCALED)
            + ". Held if ntk and yarn are better than plain rope.",
            all_of(less(losses[name][far], losses["rope"][far]) for name in ("rope, ntk", "rope, yarn")),
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        Plot(
            "Held-out loss beyond the training length",
            "tokens",
            [Curve(name, [(n, fmean(v)) for n, v in by.items()]) for name, by in losses.items()
             if name not in SCALED and len(by) > 1],
            f"Trained on {LENGTH} tokens. By chance the loss is {CHANCE:.2f}; above that, a model is wrong and sure of it. "
            "Learned positions end at the training length and are not drawn.",
            log=True,
        ),
        Plot(
            "Rope, and rope with scaled angles",
            "tokens",
            [Curve(name, [(n, fmean(v)) for n, v in losses[name].items()]) for name in ("rope", *SCALED)],
            "The same trained weights; only the angles are spaced otherwise, by a factor of 4.",
            log=True,
        ),
        Dots(
            f"Held-out loss at the training length ({LENGTH})",
            "nats a token",
            {name: losses[name][LENGTH] for name in SCHEMES},
            SEEDS,
        ),
        Plot(
            "Training loss (first seed)",
            "step",
            [Curve(name, run.curve) for name, run in swept.first.items() if run.curve],
            from_zero=True,
        ),
        Table(
            "All numbers",
            ("positions", *(f"loss at {LENGTH * s}" for s in STRETCH)),
            [
                (name, *(said(by[LENGTH * s]) if LENGTH * s in by else "refused" for s in STRETCH))
                for name, by in losses.items()
            ],
        ),
    ]  # fmt: skip
    return Result(
        "Positions beyond the training length",
        "Attention alone sees a set, so something must say where each token is. Some ways of saying it go on making sense "
        "further than training went, others do not.",
        claims,
        figures,
        f"A decoder of 2 layers (behind an encoder of one that reads a single dummy token), d_model 64, 4 heads, pre-norm. "
        f"Task: say the token that was read two places back, 1 of {SYMBOLS}; positions are all that is needed. Shaw's "
        "distances are clipped at 16 and T5's last bucket begins there, so that training sees all of them. "
        f"{bench.size(150, 4)} steps of 32 rows of {LENGTH} tokens, cosine, {len(bench.seeds(5))} seeds. Losses at other "
        "lengths are means over all tokens of fresh rows of that length. Other tasks, natural language above all, ask "
        "less for exact distances.",
    )


def sweep(bench: Bench) -> Swept:
    """Train every scheme and judge it at every length; rope also with its angles scaled afterwards."""
    problem = sized(bench, delaying(LENGTH, symbols=SYMBOLS)._replace(rows=32))
    swept = Swept({}, {}, {})
    for seed in bench.seeds(5):
        for name in SCHEMES:
            config = design(
                problem, position=Choice(name, **OPTIONS.get(name, {})), n_layers=1, n_decoder_layers=2
            )
            run = learn(config, problem, seed=seed, steps=bench.size(150, 4), lr=5e-3)
            swept.first.setdefault(name, run)
            measure(bench, run, name, swept)
            if name == "rope":
                for scaled, options in SCALED.items():
                    other = config.model_copy(update={"position": POSITION.check(Choice("rope", **options))})
                    model = build(other)
                    model.load_state_dict(run.model.state_dict())
                    measure(bench, run._replace(model=model), scaled, swept)
            bench.say(f"seed {seed}, {name}: loss {run.loss:.3f}")
    order = (*SCHEMES, *SCALED)
    return swept._replace(losses={name: swept.losses[name] for name in order})


def measure(bench: Bench, run: Learned, name: str, swept: Swept) -> None:
    """Add the losses of a run at every length."""
    by_length = swept.losses.setdefault(name, {})
    for stretch in STRETCH:
        longer = sized(bench, delaying(LENGTH * stretch, symbols=SYMBOLS)._replace(rows=32))
        try:
            by_length.setdefault(longer.max_len, []).append(judge(run.model, longer)["loss"])
        except UserError as error:
            del by_length[longer.max_len]
            swept.refused.setdefault(name, str(error))
