"""Whether queries, keys and values need separate projections."""

from __future__ import annotations

from polyhead import Choice
from polyhead_lab.registry import EXPERIMENTS, LabContext
from polyhead_lab.result import Claim, ExperimentResult, ResultTable
from polyhead_lab.short_training import (
    TrainingResult,
    describe_steps,
    train_by_task,
)
from polyhead_lab.statistics import format_mean
from polyhead_lab.tasks import COPY_AND_RECALL

_TIES = {"Q, K, V": "none", "Q, K=V": "kv", "Q=K, V": "qk", "Q=K=V": "qkv"}
_SEPARATE, _SHARED_KV, _SHARED_QK, _SHARED_ALL = _TIES
_TASKS = COPY_AND_RECALL
_WORSE_MARGIN = 0.1  # difference in nats per token that counts as worse


@EXPERIMENTS.register("tied-qkv")
def measure_tied_projections(lab: LabContext) -> ExperimentResult:
    """Queries, keys and values from one, two or three projections: quality and parameters."""
    designs = {name: {"attention": Choice("softmax", tie=tie)} for name, tie in _TIES.items()}
    runs = train_by_task(lab, _TASKS, designs, "{task}, seed {seed}, {name}: loss {run.loss:.3f}")
    parameters = {name: seeds[0].parameters for name, seeds in runs["recall"].items()}
    matrices = {name: count_projection_weights(seeds[0]) for name, seeds in runs["recall"].items()}

    def make_claim(name: str, sentence: str, source: str) -> Claim:
        return Claim(
            sentence,
            source,
            f"Loss, {runs.compare(name, _SEPARATE)}, of three projections (hurts: either is at least "
            f"{_WORSE_MARGIN} nats worse).",
            runs.verdict_no_worse(name, _SEPARATE, _WORSE_MARGIN),
        )

    claims = [
        Claim(
            "Each tie removes one of three projections in every attention.",
            "by counting",
            ", ".join(f"{name}: {n:,} weights and biases" for name, n in matrices.items())
            + " of query, key and value projections.",
            [3 * n / matrices[_SEPARATE] for n in matrices.values()] == [3, 2, 2, 1],
        ),
        make_claim(
            _SHARED_KV, "Sharing keys and values (K=V) does not hurt.", "not answered in the literature"
        ),
        make_claim(
            _SHARED_QK,
            "Sharing queries and keys (Q=K) does not hurt.",
            "Kitaev et al., 2020 (Reformer), section 5: shared-QK attention",
        ),
        make_claim(
            _SHARED_ALL,
            "One projection for all three (Q=K=V) does not hurt.",
            "not answered in the literature",
        ),
    ]
    figures = [
        *runs.make_figures(),
        ResultTable(
            "All numbers",
            ("projections", "parameters of the model", *(f"loss, {task}" for task in _TASKS)),
            [
                (name, parameters[name], *(format_mean(losses[name]) for losses in runs.loss.values()))
                for name in _TIES
            ],
        ),
    ]
    return ExperimentResult(
        "One, two or three projections",
        "Attention has separate projections for queries, keys and values. Sharing some of them saves "
        "parameters, and with K=V half of the cache could be saved. Does it hurt?",
        claims,
        figures,
        "Encoder-decoders of 2+2 layers, d_model 64, 4 heads, pre-norm, sinusoidal positions; "
        f"{describe_steps(lab, _TASKS)} The tie applies in "
        "encoder, decoder and cross-attention; in the latter one matrix projects the target to "
        "queries and the source to keys.",
    )


def count_projection_weights(run: TrainingResult) -> int:
    """Number of weights and biases of all query, key and value projections; shared ones are counted once."""
    named = run.model.named_parameters()
    return sum(p.numel() for name, p in named if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj"))
