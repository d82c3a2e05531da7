"""Whether queries, keys and values need separate projections."""

from __future__ import annotations

from polyhead import Choice
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import Claim, ExperimentResult, Figure, ResultTable
from polyhead_lab.short_training import (
    TrainingResult,
    collect_losses,
    collect_mean_losses,
    plot_loss_curves,
    plot_losses,
    plot_mean_losses,
    train_by_task,
)
from polyhead_lab.statistics import format_mean, verdict_all, verdict_less
from polyhead_lab.tasks import COPY_AND_RECALL

_TIES = {"none": "Q, K, V", "kv": "Q, K=V", "qk": "Q=K, V", "qkv": "Q=K=V"}
_TASKS = COPY_AND_RECALL
_WORSE_MARGIN = 0.1  # difference in nats per token that counts as worse


@EXPERIMENTS.register("tied-qkv")
def measure_tied_projections(lab: LabContext) -> ExperimentResult:
    """Queries, keys and values from one, two or three projections: quality and parameters."""
    designs = {tie: {"attention": Choice("softmax", tie=tie)} for tie in _TIES}
    runs = train_by_task(lab, _TASKS, designs, "{task}, seed {seed}, tie {name}")
    loss = {task: collect_losses(cells) for task, cells in runs.items()}
    mean_loss = {task: collect_mean_losses(cells) for task, cells in runs.items()}
    parameters = {tie: rs[0].parameters for tie, rs in runs["recall"].items()}
    matrices = {tie: count_projection_weights(rs[0]) for tie, rs in runs["recall"].items()}

    def make_claim(tie: str, sentence: str, source: str) -> Claim:
        measurement = "; ".join(
            f"{task}: {format_mean(loss[task][tie])} against {format_mean(loss[task]['none'])} at the end, "
            f"{format_mean(mean_loss[task][tie])} against {format_mean(mean_loss[task]['none'])} on "
            "average over training"
            for task in _TASKS
        )
        verdict = verdict_all(
            verdict_less(of[task][tie], of[task]["none"], -_WORSE_MARGIN)
            for of in (loss, mean_loss)
            for task in _TASKS
        )
        return Claim(
            sentence,
            source,
            f"Loss, {measurement}, of three projections (hurts: either is at least {_WORSE_MARGIN} nats "
            "worse).",
            verdict,
        )

    claims = [
        Claim(
            "Each tie removes one of three projections in every attention.",
            "by counting",
            ", ".join(f"{_TIES[tie]}: {matrices[tie]:,} weights and biases" for tie in _TIES)
            + " of query, key and value projections.",
            all(
                3 * matrices[tie] == n * matrices["none"]
                for tie, n in {"none": 3, "kv": 2, "qk": 2, "qkv": 1}.items()
            ),
        ),
        make_claim("kv", "Sharing keys and values (K=V) does not hurt.", "not answered in the literature"),
        make_claim(
            "qk",
            "Sharing queries and keys (Q=K) does not hurt.",
            "Kitaev et al., 2020 (Reformer), section 5: shared-QK attention",
        ),
        make_claim(
            "qkv", "One projection for all three (Q=K=V) does not hurt.", "not answered in the literature"
        ),
    ]
    figures: list[Figure] = [
        plot_losses(task, {_TIES[tie]: cells[tie] for tie in _TIES}) for task, cells in loss.items()
    ]
    figures += [
        plot_mean_losses(task, {_TIES[tie]: cells[tie] for tie in _TIES}) for task, cells in mean_loss.items()
    ]
    figures += [
        plot_loss_curves(task, {_TIES[tie]: cells[tie] for tie in _TIES}) for task, cells in runs.items()
    ]
    figures.append(
        ResultTable(
            "All numbers",
            ("projections", "parameters of the model", *(f"loss, {task}" for task in _TASKS)),
            [
                (_TIES[tie], parameters[tie], *(format_mean(loss[task][tie]) for task in _TASKS))
                for tie in _TIES
            ],
        )
    )
    return ExperimentResult(
        "One, two or three projections",
        "Attention has separate projections for queries, keys and values. Sharing some of them saves "
        "parameters, and with K=V half of the cache could be saved. Does it hurt?",
        claims,
        figures,
        "Encoder-decoders of 2+2 layers, d_model 64, 4 heads, pre-norm, sinusoidal positions; "
        + ", ".join(f"{task} {lab.pick_size(steps, 4)} steps" for task, (_, steps) in _TASKS.items())
        + f"; {len(lab.make_seeds(3))} seeds, which share data between designs. The tie applies in "
        "encoder, decoder and cross-attention; in the latter one matrix projects the target to "
        "queries and the source to keys.",
    )


def count_projection_weights(run: TrainingResult) -> int:
    """Number of weights and biases of all query, key and value projections; shared ones are counted once."""
    named = run.model.named_parameters()
    return sum(p.numel() for name, p in named if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj"))
