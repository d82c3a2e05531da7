"""Why the original Transformer multiplies its embeddings by sqrt(d_model)."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cosine_similarity

from polyhead import build
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import Claim, ExperimentResult, Figure, LinePlot, ResultTable, mean_curves
from polyhead_lab.short_training import describe_steps, make_small_config, train_by_task, verdict_by_task
from polyhead_lab.statistics import (
    format_mean,
    time_ratios,
    verdict_above,
    verdict_all,
    verdict_below,
    verdict_within,
)
from polyhead_lab.tasks import COPY_AND_RECALL, make_copy_task

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
