"""Runs whose models decide together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhead.errors import UserError
from polyhead.models.build import ABLE
from polyhead.models.ensemble import Ensemble
from polyhead.run import Run


def together(runs: Sequence[Run], names: Sequence[str] = ()) -> Run:
    """One run of several: the mean of their probabilities, with the settings of the first.

    Models that say tokens must share a tokenizer. Classifiers need only the same classes: each reads a text by its
    own. What does not fit together is a UserError, in which ``names`` are theirs; without they are numbers.
    """
    if not runs:
        raise UserError("no run is given")
    first, names = runs[0], names or [f"run {number}" for number in range(1, len(runs) + 1)]
    if len(runs) == 1:
        return first
    if first.config.generator:
        raise UserError(
            f"{names[0]} tells tokens of its own generator from others: it decides alone, or gives vectors"
        )
    for name, run in zip(names[1:], runs[1:], strict=True):
        if run.kind != first.kind or (run.kind == "encoder" and run.config.head != first.config.head):
            raise UserError(
                f"runs that decide together are of one kind; {names[0]} is {ABLE[first.kind][0]}, {name} {ABLE[run.kind][0]}"
            )
        if first.kind == "classifier":
            _check_classes(first, run, names[0], name)
        else:
            _check_tokens(first, run, names[0], name)
    model: Any = Ensemble([run.model for run in runs])
    made = Run(model, first.tokenizer, first.generation, first.recipe)
    made.directory = first.directory
    made.members = [(run.model, run.tokenizer) for run in runs]
    return made


def _check_classes(first: Run, run: Run, one: str, other: str) -> None:
    wanted, given = first.config.labels, run.config.labels
    if set(wanted) != set(given):
        raise UserError(
            f"{other} has the classes {', '.join(given)}; {one} has {', '.join(wanted)}: they must be the same"
        )
    if len(wanted) == 1 and first.generation.sigmoid != run.generation.sigmoid:
        free, bounded = (other, one) if first.generation.sigmoid else (one, other)
        raise UserError(
            f"scores of {free} have no bounds and those of {bounded} are between 0 and 1: they have no mean"
        )


def _check_tokens(first: Run, run: Run, one: str, other: str) -> None:
    a, b = first.tokenizer, run.tokenizer
    if (a.sha256, a.ids, first.config.vocab_size) != (b.sha256, b.ids, run.config.vocab_size):
        sizes = f"{first.config.vocab_size:,} and {run.config.vocab_size:,} tokens"
        raise UserError(
            f"{other} has another tokenizer than {one} ({sizes}): the probabilities of other tokens have no mean; "
            "train both on the same text, or let one start from the other"
        )
