"""Runs whose models decide together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhead.errors import UserError
from polyhead.models.build import ABLE
from polyhead.models.ensemble import Ensemble
from polyhead.run import Run

KINDS = ("encoder-decoder", "decoder", "classifier")


def together(runs: Sequence[Run]) -> Run:
    """One run of several: the mean of their probabilities, with the settings of the first.

    Models that say tokens must share a tokenizer. Classifiers need only the same classes: each reads a text by its
    own. What does not fit together is a UserError.
    """
    if not runs:
        raise UserError("no run is given")
    first = runs[0]
    if len(runs) == 1:
        return first
    if first.kind not in KINDS:
        able = ", ".join(ABLE[kind][0] for kind in KINDS)
        raise UserError(
            f"several runs decide together where each is {able}; the first is {ABLE[first.kind][0]}"
        )
    for number, run in enumerate(runs[1:], 2):
        if run.kind != first.kind:
            raise UserError(
                f"runs that decide together are of one kind; run 1 is {ABLE[first.kind][0]}, run {number} {ABLE[run.kind][0]}"
            )
        if first.kind == "classifier":
            _check_classes(first, run, number)
        else:
            _check_tokens(first, run, number)
    model: Any = Ensemble([run.model for run in runs])
    made = Run(model, first.tokenizer, first.generation, first.recipe)
    made.members = [(run.model, run.tokenizer) for run in runs]
    return made


def _check_classes(first: Run, run: Run, number: int) -> None:
    wanted, given = first.config.labels, run.config.labels
    if set(wanted) != set(given):
        raise UserError(
            f"run {number} has the classes {', '.join(given)}; run 1 has {', '.join(wanted)}: they must be the same"
        )


def _check_tokens(first: Run, run: Run, number: int) -> None:
    a, b = first.tokenizer, run.tokenizer
    if (a.rules, a.ids, first.config.vocab_size) != (b.rules, b.ids, run.config.vocab_size):
        sizes = f"{first.config.vocab_size:,} and {run.config.vocab_size:,} tokens"
        raise UserError(
            f"run {number} has another tokenizer than run 1 ({sizes}): the probabilities of other tokens have no mean; "
            "train both on the same text, or let one start from the other"
        )
