"""Ensembles of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhead.core.errors import UserError
from polyhead.models.build import CAPABILITIES
from polyhead.models.ensemble import Ensemble
from polyhead.run.run import Run


def ensemble_runs(runs: Sequence[Run], names: Sequence[str] = ()) -> Run:
    """Combine runs into one that averages their probabilities, with the settings of the first.

    Models that output tokens must share a tokenizer. Classifiers need only the same classes: each reads a
    text with its own tokenizer. Runs that do not fit together are a UserError, which calls them by ``names``,
    by default by their numbers.
    """
    if not runs:
        raise UserError("no runs")
    first, names = runs[0], names or [f"run {number}" for number in range(1, len(runs) + 1)]
    if len(runs) == 1:
        return first
    if first.config.generator_layers:
        raise UserError(
            f"{names[0]} detects tokens of its own generator: it cannot be in an ensemble, except "
            "for embeddings"
        )
    if first.kind in ("token classifier", "question answerer"):
        raise UserError(f"{names[0]} is a {first.kind}: it cannot be in an ensemble")
    for name, run in zip(names[1:], runs[1:], strict=True):
        if run.kind != first.kind or (run.kind == "encoder" and run.config.lm_head != first.config.lm_head):
            raise UserError(
                f"runs of an ensemble must have one kind; {names[0]} is "
                f"{CAPABILITIES[first.kind][0]}, {name} {CAPABILITIES[run.kind][0]}"
            )
        if first.kind == "classifier":
            _check_classes(first, run, names[0], name)
        else:
            _check_tokens(first, run, names[0], name)
    model: Any = Ensemble([run.model for run in runs])
    ensemble = Run(model, first.tokenizer, first.generation, first.recipe)
    ensemble.directory, ensemble.saved_prompt_template = first.directory, first.saved_prompt_template
    ensemble.members = [(run.model, run.tokenizer) for run in runs]
    return ensemble


def _check_classes(reference: Run, run: Run, reference_name: str, run_name: str) -> None:
    labels, run_labels = reference.config.labels, run.config.labels
    if set(labels) != set(run_labels):
        raise UserError(
            f"{run_name} has the classes {', '.join(run_labels)}; {reference_name} has {', '.join(labels)}: "
            "they must be the same"
        )
    if reference.config.problem_type != run.config.problem_type:
        raise UserError(
            f"{run_name} is of {run.config.problem_type}, {reference_name} of "
            f"{reference.config.problem_type}: they must be the same"
        )
    if len(labels) == 1 and reference.generation.score_activation != run.generation.score_activation:
        names = [reference_name, run_name]
        if reference.generation.score_activation == "sigmoid":
            names.reverse()
        raise UserError(
            f"scores of {names[0]} are unbounded and those of {names[1]} are between 0 and 1: they cannot "
            "be averaged"
        )


def _check_tokens(reference: Run, run: Run, reference_name: str, run_name: str) -> None:
    a, b = reference.tokenizer, run.tokenizer
    if (a.sha256, a.role_ids, reference.config.vocab_size) != (b.sha256, b.role_ids, run.config.vocab_size):
        sizes = f"{reference.config.vocab_size:,} and {run.config.vocab_size:,} tokens"
        raise UserError(
            f"{run_name} has another tokenizer than {reference_name} ({sizes}): probabilities of different "
            "tokens cannot be averaged; train both on the same text, or use init_from with the other"
        )
