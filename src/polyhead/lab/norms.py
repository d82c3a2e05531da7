"""What is normalised: a token's features, or a feature over the tokens of the batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from polyhead.lab.catalogue import LAB, Bench
from polyhead.lab.clock import medians, race, ratios
from polyhead.lab.learn import backward, by_task, design, loss_dots, loss_plot, losses, sized, trained
from polyhead.lab.result import Claim, Dots, Figure, Result, Table
from polyhead.lab.tasks import PAD, START, copying
from polyhead.lab.verdict import alike, all_of, below, less, said
from polyhead.models.build import build
from polyhead.nn.loss import IGNORED

NORMS = ("layernorm", "rmsnorm", "batchnorm", "none")
FULL, PADDED, STEPS = copying(), copying(shortest=2), 200
TASKS = {"full rows": (FULL, STEPS), "much padding": (PADDED, STEPS)}
DEEP = 6  # layers of encoder and decoder each
SAME = 0.1  # nats a token that count as no difference
ROUNDING = 1e-4  # the same for numbers that should be equal


@LAB.register("norms")
def norms(bench: Bench) -> Result:
    """LayerNorm, RMSNorm, BatchNorm and none: loss, cost, and whether padding matters."""
    runs = by_task(bench, TASKS, {norm: {"norm": norm} for norm in NORMS})
    loss = {name: losses(cells) for name, cells in runs.items()}
    gap = {
        name: {norm: [r.loss - r.training_loss for r in rs] for norm, rs in cells.items()}
        for name, cells in runs.items()
    }
    deep = deep_trainings(bench)
    taken = step_times(bench)
    middle = medians(taken)
    cost = {norm: ratios(taken[norm], taken["layernorm"]) for norm in NORMS}
    told, untold = padding_matters(bench, True), padding_matters(bench, False)

    claims = [
        Claim(
            "RMSNorm reaches the loss of LayerNorm: centring is not what helps.",
            "Zhang & Sennrich, 2019, section 5",
            "; ".join(f"{name}: {said(loss[name]['rmsnorm'])} against {said(loss[name]['layernorm'])}" for name in TASKS)
            + f" (the same: within {SAME} nats).",
            all_of(alike(cells["rmsnorm"], cells["layernorm"], SAME) for cells in loss.values()),
        ),
        Claim(
            "RMSNorm takes less time than LayerNorm.",
            "Zhang & Sennrich, 2019, section 5: 7 to 64 % of a step",
            f"A whole training step takes {said(cost['rmsnorm'])} times as long as with LayerNorm.",
            below(cost["rmsnorm"], 1.0),
        ),
        Claim(
            "BatchNorm does worse than LayerNorm in a Transformer.",
            "Shen et al., 2020 (PowerNorm), table 1",
            "; ".join(f"{name}: {said(loss[name]['batchnorm'])} against {said(loss[name]['layernorm'])}" for name in TASKS)
            + ".",
            all_of(less(cells["layernorm"], cells["batchnorm"]) for cells in loss.values()),
        ),
        Claim(
            "BatchNorm's running statistics cost it at evaluation what it had in training.",
            "Shen et al., 2020, section 3",
            "Held-out less training loss: "
            + "; ".join(
                f"{name}: batchnorm {said(g['batchnorm'])}, layernorm {said(g['layernorm'])}"
                for name, g in gap.items()
            )
            + ".",
            all_of(less(g["layernorm"], g["batchnorm"]) for g in gap.values()),
        ),
        Claim(
            "Without any norm a Transformer learns worse or not at all.",
            "Vaswani et al., 2017, section 3.1, has one in every residual; Xiong et al., 2020",
            "; ".join(f"{name}: {said(loss[name]['none'])} against {said(loss[name]['layernorm'])}" for name in TASKS) + ".",
            all_of(less(cells["layernorm"], cells["none"]) for cells in loss.values()),
        ),
        Claim(
            "Without any norm a deeper Transformer learns worse or not at all.",
            "Xiong et al., 2020; Zhang et al., 2019 (Fixup), for the opposite, with an initialisation made for it",
            f"{DEEP}+{DEEP} layers: {said(deep['none'])} against {said(deep['layernorm'])}.",
            less(deep["layernorm"], deep["none"]),
        ),
        Claim(
            "BatchNorm over the valid tokens alone does not care how much padding a batch has.",
            "the definition: statistics of the tokens that are there",
            f"Four times the width in padding changes the features of training mode by at most {told:.2g}; counted as "
            f"tokens, it would change them by up to {untold:.2g}.",
            told < ROUNDING,
        ),
    ]  # fmt: skip
    figures: list[Figure] = [loss_dots(name, cells) for name, cells in loss.items()]
    figures.append(Dots(f"Held-out loss, full rows, {DEEP}+{DEEP} layers", "nats a token", deep))
    figures += [loss_plot(name, cells) for name, cells in runs.items()]
    figures.append(
        Dots("A training step", "milliseconds", {norm: [1e3 * t for t in taken[norm]] for norm in NORMS},
             "A small dot a round; the norms ran in turns.")
    )  # fmt: skip
    figures.append(
        Table(
            "All numbers",
            ("norm", *(f"loss, {name}" for name in TASKS), *(f"held-out less training, {name}" for name in TASKS),
             "ms a step", "times LayerNorm"),
            [
                (norm, *(said(loss[name][norm]) for name in TASKS), *(said(gap[name][norm]) for name in TASKS),
                 f"{1e3 * middle[norm]:.2f}", said(cost[norm]))
                for norm in NORMS
            ],
        )
    )  # fmt: skip
    return Result(
        "Which norm",
        "A norm keeps the sizes of activations in hand. LayerNorm and RMSNorm look at one token; BatchNorm at one feature of "
        "all tokens of the batch, and so it must know which of them are padding, and needs other statistics when it is used.",
        claims,
        figures,
        f"Encoder-decoders of 2+2 layers, d_model 64, pre-norm, copying 12 tokens (much padding: rows of 2 to 12, on "
        f"average 42 % of a batch is padding); {bench.size(STEPS, 4)} steps of 64 rows, cosine, {len(bench.seeds(3))} seeds. BatchNorm "
        "takes its statistics from valid tokens. Training loss is that of the last steps. The deep models: 150 "
        "steps of 32 rows, peak rate 2e-3 instead of 5e-3.\n\nTime: forward and backward "
        f"pass of 64 rows of 12 + 12 tokens, d_model {bench.size(128, 16)}.",
    )


def deep_trainings(bench: Bench) -> dict[str, list[float]]:
    """Losses of a deep model with and without a norm."""
    problem = FULL._replace(rows=32)
    designs = {
        norm: design(problem, norm=norm, n_layers=bench.size(DEEP, 2)) for norm in ("layernorm", "none")
    }
    told = f"{DEEP} layers, seed {{seed}}, {{name}}"
    return losses(trained(bench, problem, designs, steps=bench.size(150, 4), lr=2e-3, told=told))


def step_times(bench: Bench) -> dict[str, list[float]]:
    """Seconds of forward and backward pass with each norm, in turns."""
    problem = sized(bench, FULL)
    size: dict[str, Any] = bench.size({"d_model": 128, "d_ff": 256}, {"d_model": 16, "d_ff": 16})
    models = {norm: build(design(problem, norm=norm, **size), bench.seed).train() for norm in NORMS}
    batch = problem.batch(bench.seed, 0)
    runners = {norm: partial(backward, model, batch) for norm, model in models.items()}
    return race(runners, bench.size(15, 3))


@torch.no_grad()
def padding_matters(bench: Bench, told: bool) -> float:
    """The most that three times as many columns of padding change any feature of a valid token in training mode.

    ``told``: the model is given positions, and so knows what is padding; else it takes padding for tokens.
    """
    problem = sized(bench, PADDED)
    config = design(problem, norm="batchnorm", max_len=64)
    batch = problem.batch(bench.seed, 0)
    rows, width = batch.target.shape
    extra = torch.full((rows, 3 * width), PAD)
    source, target = torch.cat([batch.source, extra], 1), torch.cat([batch.target, extra + START], 1)
    assert batch.source_pos is not None, "rows of many lengths leave padding"
    source_pos = torch.cat([batch.source_pos, extra - 1], 1)
    target_pos = torch.cat([batch.target_pos, extra - 1], 1)
    valid = batch.labels != IGNORED
    seen = []
    for s, t, s_pos, t_pos in (
        (batch.source, batch.target, source_pos[:, :width], target_pos[:, :width]),
        (source, target, source_pos, target_pos),
    ):
        model = build(config, bench.seed).train()  # anew, for training mode moves the running statistics
        model.double()
        x = model.features(s, t, s_pos if told else None, t_pos if told else None)
        seen.append(x[:, :width][valid])
    return float((seen[0] - seen[1]).abs().max())
