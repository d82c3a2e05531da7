"""The levers of a run and a text: the part ``levers`` of the document, and one case for the live page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.explain.inputs import ModelInputs
from polyhead.explain.levers.lever_input import read_lever_input
from polyhead.explain.levers.table import (
    SpellOutput,
    compute_case,
    describe_levers,
    describe_rows,
    spell_tokens,
)
from polyhead.models import Classifier, ReplacedTokenDetector, SentenceEncoder
from polyhead.run.run import Run
from polyhead.tokenizers.display import spell_token


def explain_levers(
    run: Run, inputs: ModelInputs, window: tuple[int, int], *, has_cases: bool = True
) -> dict[str, Any] | None:
    """The part ``levers`` of the document; None for an encoder without a head, which has no output.

    ``window`` are the tokens of the last side that are shown.
    """
    if isinstance(run.model, SentenceEncoder):
        return None
    return describe_levers(read_lever_input(run, inputs, window), make_speller(run), has_cases=has_cases)


def explain_case(
    run: Run, inputs: ModelInputs, window: tuple[int, int], name: str, setting: Mapping[str, Any]
) -> dict[str, Any]:
    """One setting of one lever, with the rows and the plain output that it is compared with."""
    lever_input = read_lever_input(run, inputs, window)
    part = {"name": name, "case": compute_case(lever_input, name, setting)} | describe_rows(lever_input)
    return part | {"tokens": spell_tokens(part, make_speller(run))}


def make_speller(run: Run) -> SpellOutput:
    """The function that spells an output of the run: a token, or the label of a class."""
    model, tokenizer = run.model, run.tokenizer.target_tokenizer
    labels: list[str] = []
    if isinstance(model, Classifier):
        labels = list(model.config.labels)
        labels = labels if len(labels) > 1 else [f"not {labels[0]}", labels[0]]
    elif isinstance(model, ReplacedTokenDetector):
        labels = ["original", "replaced"]

    def spell(i: int) -> str:
        if labels:
            return labels[i]
        return spell_token(tokenizer, i) if i <= tokenizer.max_id else f"<{i}>"

    return spell
