"""Activations of the feed-forward layer, and the dead units they cause."""

from __future__ import annotations

import statistics
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polyhead import Choice, ModelConfig
from polyhead.models.seq2seq import Seq2Seq
from polyhead_lab.registry import (
    EXPERIMENTS,
    TOY,
    Claim,
    DotPlot,
    ExperimentResult,
    Figure,
    LabContext,
    LinePlot,
    ResultTable,
)
from polyhead_lab.short_training import (
    FIRST_HELD_OUT,
    TrainingResult,
    collect_first_curves,
    make_lookup_task,
    make_small_config,
    run_short_training,
    shrink_if_quick,
)
from polyhead_lab.statistics import (
    format_mean,
    format_mean_percent,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_less,
)

LOOKUP_TASK = make_lookup_task(symbols=10)
D_FF = 192
_PLAIN_ACTIVATIONS = ("relu", "leaky_relu", "prelu", "gelu", "silu", "tanh", "sigmoid")
_GATED_ACTIVATIONS = ("reglu", "geglu", "swiglu")  # three matrices instead of two, so two thirds of the width
_LEARNING_RATES = {"normal": 3e-3, "high": 5e-2}
_ACTIVATIONS_BY_RATE = {
    "normal": (*_PLAIN_ACTIVATIONS, *_GATED_ACTIVATIONS),
    "high": (*_PLAIN_ACTIVATIONS, "reglu"),
}
_DEAD_THRESHOLD = 1e-3  # relative to the RMS output of a layer; a unit with a smaller range is dead


class RateRuns(NamedTuple):
    """Runs of one design at one learning rate, and the share of dead units of each run, by seed."""

    runs: list[TrainingResult]
    dead_shares: list[float]

    @property
    def losses(self) -> list[float]:
        return [run.loss for run in self.runs]


@EXPERIMENTS.register("activations")
def measure_activations(lab: LabContext) -> ExperimentResult:
    """ReLU, its relatives, and gates: dead units and loss at a normal and at a high learning rate."""
    steps = lab.pick_size(150, 4)
    cells: dict[str, dict[str, RateRuns]] = {rate: {} for rate in _LEARNING_RATES}
    for seed in lab.make_seeds(5):
        for rate, lr in _LEARNING_RATES.items():
            for name in _ACTIVATIONS_BY_RATE[rate]:
                run = run_short_training(
                    make_activation_config(name),
                    shrink_if_quick(lab, LOOKUP_TASK),
                    seed=seed,
                    steps=steps,
                    lr=lr,
                    clip_norm=0.0,
                    warmup=steps // 10,
                )
                cell = cells[rate].setdefault(name, RateRuns([], []))
                cell.runs.append(run)
                cell.dead_shares.append(dead_unit_share(run.model))
                lab.info(
                    f"seed {seed}, rate {rate}, {name}: loss {run.loss:.3f}, dead "
                    f"{100 * cell.dead_shares[-1]:.1f} %"
                )
    normal, high = cells["normal"], cells["high"]
    loss = {name: format_mean(cell.losses) for name, cell in normal.items()}
    dead = {name: format_mean_percent(cell.dead_shares) for name, cell in high.items()}
    smooth, leaky = ("gelu", "silu"), ("leaky_relu", "prelu")
    gain = [x - y for x, y in zip(high["relu"].dead_shares, normal["relu"].dead_shares, strict=True)]
    claims = [
        Claim(
            "A high learning rate kills ReLU units permanently.",
            "Maas et al., 2013, section 2; Lu et al., 2019, section 1",
            f"Dead ReLU units: {format_mean_percent(normal['relu'].dead_shares)} at the normal, "
            f"{dead['relu']} at the high rate.",
            verdict_above(gain, 0.01), TOY,
        ),
        Claim(
            "Leaky ReLU and PReLU do not die.",
            "Maas et al., 2013; He et al., 2015, section 2.1",
            f"At the high rate: leaky_relu {dead['leaky_relu']}, prelu {dead['prelu']} dead.",
            verdict_all(verdict_below(high[name].dead_shares, 0.01) for name in leaky), TOY,
        ),
        Claim(
            "GELU and SiLU have fewer dead units than ReLU.",
            "commonly claimed for smooth activations; Hendrycks & Gimpel, 2016, section 4",
            f"At the high rate: gelu {dead['gelu']}, silu {dead['silu']}, relu {dead['relu']} dead.",
            verdict_all(verdict_less(high[name].dead_shares, high["relu"].dead_shares) for name in smooth),
            TOY,
        ),
        Claim(
            "GELU and SiLU reach a lower loss than ReLU.",
            "Hendrycks & Gimpel, 2016; Ramachandran et al., 2017",
            f"At the normal rate: gelu {loss['gelu']}, silu {loss['silu']}, relu {loss['relu']}.",
            verdict_all(verdict_less(normal[name].losses, normal["relu"].losses) for name in smooth), TOY,
        ),
        Claim(
            "Tanh learns better than the sigmoid.",
            "LeCun et al., 1998 (Efficient BackProp), section 4.4: its outputs are centred",
            f"At the normal rate: tanh {loss['tanh']}, sigmoid {loss['sigmoid']}.",
            verdict_less(normal["tanh"].losses, normal["sigmoid"].losses), TOY,
        ),
        Claim(
            "Gated layers are better than plain ones with equal parameters.",
            "Shazeer, 2020, table 1",
            "At the normal rate: " + ", ".join(f"{name} {loss[name]}" for name in _GATED_ACTIVATIONS)
            + f" against relu {loss['relu']}, gelu {loss['gelu']}, silu {loss['silu']}.",
            verdict_all(
                verdict_less(normal[gated].losses, normal[plain].losses)
                for gated, plain in zip(_GATED_ACTIVATIONS, ("relu", "gelu", "silu"), strict=True)
            ), TOY,
        ),
        Claim(
            "Dead units cost quality.",
            "implied where they are called a problem",
            f"At the high rate relu loses {dead['relu']} of its units and has the loss "
            f"{format_mean(high['relu'].losses)}, leaky_relu {dead['leaky_relu']} and "
            f"{format_mean(high['leaky_relu'].losses)}.",
            verdict_less(high["leaky_relu"].losses, high["relu"].losses)
            if verdict_above(gain, 0.01)
            else None, TOY,
        ),
    ]  # fmt: skip
    figures: list[Figure] = [
        *(DotPlot(
            f"Dead hidden units, {rate} learning rate ({_LEARNING_RATES[rate]:g})",
            "% of all hidden units",
            {name: [100 * d for d in cell.dead_shares] for name, cell in by_name.items()},
            "A unit is dead if its output is the same for every held-out token: it "
            "carries no information, and a ReLU that is always 0 gets no gradient to recover.",
        ) for rate, by_name in cells.items()),
        *(DotPlot(f"Held-out loss, {rate} learning rate ({_LEARNING_RATES[rate]:g})", "nats per token",
             {name: cell.losses for name, cell in by_name.items()}) for rate, by_name in cells.items()),
        LinePlot("Training loss, normal learning rate (first seed)", "step",
             collect_first_curves({name: cell.runs for name, cell in normal.items()})),
        ResultTable(
            "All numbers",
            ("activation", "loss, normal", "loss, high", "dead, normal", "dead, high"),
            [
                (name, loss[name], format_mean(high[name].losses) if name in high else "not measured",
                 format_mean_percent(normal[name].dead_shares), dead.get(name, "not measured"))
                for name in normal
            ],
        ),
    ]  # fmt: skip
    return ExperimentResult(
        "Activations and dead units",
        "A feed-forward layer has a nonlinear activation between its two matrices. A ReLU unit "
        "that is negative for every input outputs 0 and learns nothing: it is dead. "
        "Other activations and gates were proposed to avoid that, or because they learned better.",
        claims,
        figures,
        f"Encoder-decoder of 1+1 layers, d_model 64, {D_FF} hidden units (two thirds of that for gated "
        "layers, which have three matrices; of these only reglu is tried at the high rate), pre-norm. Task: "
        f"a random table of 100 entries, which the feed-forward layers must memorise. {steps} steps, warm-up "
        f"over a tenth, cosine, no clipping, {len(lab.make_seeds(5))} seeds.\n\nDead: over four held-out "
        "batches the unit's output (after the gate, if there is one) moves by less than a thousandth of the "
        "root mean square of its layer. Claims about dead units require 1 % of units.",
    )


def make_activation_config(name: str) -> ModelConfig:
    """Model config with one activation."""
    return make_small_config(
        LOOKUP_TASK,
        n_layers=1,
        feed_forward=Choice(name),
        d_ff=D_FF * 2 // 3 if name in _GATED_ACTIVATIONS else D_FF,
    )


@torch.inference_mode()
def dead_unit_share(model: Seq2Seq) -> float:
    """Share of all hidden units whose output is the same for every held-out token."""
    inputs_by_layer: dict[nn.Module, list[Tensor]] = {}
    hooks = []
    for name, module in model.named_modules():
        if name.endswith("ffn.down_proj"):
            inputs_by_layer[module] = []
            hooks.append(module.register_forward_pre_hook(lambda part, x: inputs_by_layer[part].append(x[0])))
    model.eval()
    for number in range(FIRST_HELD_OUT, FIRST_HELD_OUT + 4):
        batch = LOOKUP_TASK.batch(0, number)
        model.features(batch.source, batch.target, batch.source_pos)
    for hook in hooks:
        hook.remove()
    return statistics.mean(
        compute_dead_share(torch.cat([x.flatten(0, 1) for x in layer])) for layer in inputs_by_layer.values()
    )


def compute_dead_share(hidden: Tensor) -> float:
    """Share of units with a negligible range over the tokens: (tokens, units) -> 0..1."""
    reach = hidden.amax(0) - hidden.amin(0)
    typical = hidden.square().mean().sqrt()
    return float((reach <= _DEAD_THRESHOLD * typical).float().mean())
