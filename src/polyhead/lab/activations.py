"""Activations of the feed-forward layer, and the units they lose."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polyhead.config import ModelConfig
from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.learn import HELD_OUT, Learned, design, first_curves, learn, sized
from polyhead.lab.result import Claim, Dots, Figure, Plot, Result, Table
from polyhead.lab.tasks import combining
from polyhead.lab.verdict import above, all_of, below, less, percent, said
from polyhead.models.seq2seq import Seq2Seq
from polyhead.registry import Choice

PROBLEM = combining(symbols=10)
D_FF = 192
PLAIN = ("relu", "leaky_relu", "prelu", "gelu", "silu", "tanh")
GATED = ("reglu", "geglu", "swiglu")  # three matrices instead of two, so two thirds of the width
RATES = {"normal": 3e-3, "high": 5e-2}
TRIED = {"normal": (*PLAIN, *GATED), "high": (*PLAIN, "reglu")}
STILL = 1e-3  # of a layer's typical output: a unit that moves less than this is dead


class Cell(NamedTuple):
    """One design at one rate: a run and its share of dead units for every seed."""

    runs: list[Learned]
    dead: list[float]

    @property
    def losses(self) -> list[float]:
        return [run.loss for run in self.runs]


@LAB.register("activations")
def activations(bench: Bench) -> Result:
    """ReLU, its relatives, and gates: dead units and loss at a normal and at a high learning rate."""
    steps = bench.size(150, 4)
    cells: dict[str, dict[str, Cell]] = {rate: {} for rate in RATES}
    for seed in bench.seeds(5):
        for rate, lr in RATES.items():
            for name in TRIED[rate]:
                run = learn(
                    config(name),
                    sized(bench, PROBLEM),
                    seed=seed,
                    steps=steps,
                    lr=lr,
                    clip_norm=0.0,
                    warmup=steps // 10,
                )
                cell = cells[rate].setdefault(name, Cell([], []))
                cell.runs.append(run)
                cell.dead.append(dead_units(run.model))
                bench.say(
                    f"seed {seed}, rate {rate}, {name}: loss {run.loss:.3f}, dead {100 * cell.dead[-1]:.1f} %"
                )
    normal, high = cells["normal"], cells["high"]
    smooth, leaky = ("gelu", "silu"), ("leaky_relu", "prelu")
    gain = [x - y for x, y in zip(high["relu"].dead, normal["relu"].dead, strict=True)]
    claims = [
        Claim(
            "A high learning rate kills ReLU units: they are never active again.",
            "Maas et al., 2013, section 2; Lu et al., 2019, section 1",
            f"Dead ReLU units: {percent(normal['relu'].dead)} at the normal, {percent(high['relu'].dead)} at the high rate.",
            above(gain, 0.01),
        ),
        Claim(
            "Leaky ReLU and PReLU do not die.",
            "Maas et al., 2013; He et al., 2015, section 2.1",
            f"At the high rate: leaky_relu {percent(high['leaky_relu'].dead)}, prelu {percent(high['prelu'].dead)} dead.",
            all_of(below(high[name].dead, 0.01) for name in leaky),
        ),
        Claim(
            "GELU and SiLU lose fewer units than ReLU.",
            "commonly said of smooth activations; Hendrycks & Gimpel, 2016, section 4",
            f"At the high rate: gelu {percent(high['gelu'].dead)}, silu {percent(high['silu'].dead)}, relu "
            f"{percent(high['relu'].dead)} dead.",
            all_of(less(high[name].dead, high["relu"].dead) for name in smooth),
        ),
        Claim(
            "GELU and SiLU reach a lower loss than ReLU.",
            "Hendrycks & Gimpel, 2016; Ramachandran et al., 2017",
            f"At the normal rate: gelu {said(normal['gelu'].losses)}, silu {said(normal['silu'].losses)}, relu {said(normal['relu'].losses)}.",
            all_of(less(normal[name].losses, normal["relu"].losses) for name in smooth),
        ),
        Claim(
            "Gated layers are better than their plain forms at equal parameters.",
            "Shazeer, 2020, table 1",
            "At the normal rate: " + ", ".join(f"{name} {said(normal[name].losses)}" for name in GATED)
            + f" against relu {said(normal['relu'].losses)}, gelu {said(normal['gelu'].losses)}, silu {said(normal['silu'].losses)}.",
            all_of(
                less(normal[gated].losses, normal[plain].losses)
                for gated, plain in zip(GATED, ("relu", "gelu", "silu"), strict=True)
            ),
        ),
        Claim(
            "Dead units cost quality.",
            "implied wherever they are called a problem",
            f"At the high rate relu loses {percent(high['relu'].dead)} of its units and reaches {said(high['relu'].losses)}, "
            f"leaky_relu {percent(high['leaky_relu'].dead)} and {said(high['leaky_relu'].losses)}.",
            less(high["leaky_relu"].losses, high["relu"].losses) if above(gain, 0.01) else None,
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        Dots(
            f"Dead hidden units, {rate} learning rate ({RATES[rate]:g})",
            "percent of all hidden units",
            {name: [100 * d for d in cell.dead] for name, cell in by_name.items()},
            "A unit is dead if its output is the same for every held-out token: it says nothing, and a ReLU that is always "
            "0 gets no gradient that could wake it.",
        )
        for rate, by_name in cells.items()
    ]
    figures += [
        Dots(f"Held-out loss, {rate} learning rate ({RATES[rate]:g})", "nats a token",
             {name: cell.losses for name, cell in by_name.items()})
        for rate, by_name in cells.items()
    ]  # fmt: skip
    figures.append(
        Plot("Training loss, normal learning rate (first seed)", "step",
             first_curves({name: cell.runs for name, cell in normal.items()}))
    )  # fmt: skip
    figures.append(
        Table(
            "All numbers",
            ("activation", "loss, normal", "loss, high", "dead, normal", "dead, high"),
            [
                (name, said(normal[name].losses), said(high[name].losses) if name in high else "not measured",
                 percent(normal[name].dead), percent(high[name].dead) if name in high else "not measured")
                for name in normal
            ],
        )
    )  # fmt: skip
    return Result(
        "Activations and dead units",
        "Between its two matrices a feed-forward layer bends each unit's value. A ReLU that is pushed below zero for every "
        "input gives nothing and learns nothing: it is dead. Other bends and gates were proposed against that, or because "
        "they learned better.",
        claims,
        figures,
        f"Encoder-decoder of 1+1 layers, d_model 64, {D_FF} hidden units (two thirds of that for gated layers, which have "
        f"three matrices; of these only reglu is tried at the high rate), pre-norm. Task: a random table of 100 entries, which the feed-forward layers must learn by heart. "
        f"{steps} steps, warm-up over a tenth, cosine, no clipping, {len(bench.seeds(5))} seeds.\n\nDead: over "
        "four held-out batches the unit's output (after the gate, if there is one) moves by less than a thousandth of the "
        "root mean square of its layer. Claims of dead units ask for 1 % of units.",
    )


def config(name: str) -> ModelConfig:
    """The design with one activation."""
    return design(
        PROBLEM, n_layers=1, feed_forward=Choice(name), d_ff=D_FF * 2 // 3 if name in GATED else D_FF
    )


@torch.inference_mode()
def dead_units(model: Seq2Seq) -> float:
    """Share of all hidden units whose output is the same for every held-out token."""
    seen: dict[str, list[Tensor]] = {}
    hooks = []
    for name, module in model.named_modules():
        if name.endswith("ffn.down_proj"):
            seen[name] = []
            hooks.append(module.register_forward_pre_hook(keep(seen[name])))
    model.eval()
    for number in range(HELD_OUT, HELD_OUT + 4):
        batch = PROBLEM.batch(0, number)
        model.features(batch.source, batch.target, batch.source_pos)
    for hook in hooks:
        hook.remove()
    return statistics.mean(still(torch.cat([x.flatten(0, 1) for x in layer])) for layer in seen.values())


def keep(seen: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A hook that keeps what goes into a module."""
    return lambda module, inputs: seen.append(inputs[0])


def still(hidden: Tensor) -> float:
    """Share of units that hardly move: (tokens, units) -> 0..1."""
    reach = hidden.amax(0) - hidden.amin(0)
    typical = hidden.square().mean().sqrt()
    return float((reach <= STILL * typical).float().mean())
