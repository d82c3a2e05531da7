"""Baseline rows of the result table, and designs whose score does not beat their baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyhead.compare.io import ResultRow
from polyhead.compare.tasks.base import QualityMeasure
from polyhead.core.i18n import tr
from polyhead.evaluate.baselines import Baseline
from polyhead.evaluate.token_accuracy import loss_to_perplexity


def is_unlearned(row: ResultRow) -> bool:
    """Whether a design is known to score no better than its baseline."""
    return row.get("learned") is False


def baseline_rows(rows: Sequence[ResultRow], measures: Sequence[QualityMeasure]) -> list[dict[str, Any]]:
    """Table row of baseline scores; several rows if baselines differ, e.g. between tokenizers."""
    unique_rows: list[dict[str, Any]] = []
    for row in rows:
        baselines = {name: Baseline(**fields) for name, fields in (row.get("baselines") or {}).items()}
        baseline_row: dict[str, Any] = {"base": False, "name": describe_baselines(baselines, measures)}
        for measure in measures:
            baseline = baselines.get(measure.name)
            baseline_row[measure.name] = baseline.value if baseline else None
            baseline_row |= {f"{measure.name}_{part}": None for part in ("spread", "interval", "p")}
        baseline_row["ppl"] = (
            None if baseline_row["loss"] is None else loss_to_perplexity(baseline_row["loss"])
        )
        if baselines and baseline_row not in unique_rows:
            unique_rows.append(baseline_row)
    return unique_rows


def describe_baselines(baselines: Mapping[str, Baseline], measures: Sequence[QualityMeasure]) -> str:
    """What the baseline of the score (the second metric) guesses, and other guesses where they differ."""
    guesses = {m.column: baselines[m.name].describe_guess() for m in measures if m.name in baselines}
    score = guesses.get(measures[1].column)
    other_guesses = [f"{column}: {guess}" for column, guess in guesses.items() if guess != score]
    return "; ".join([tr("baseline") + (f": {score}" if score else ""), *other_guesses])


def describe_unlearned(rows: Sequence[ResultRow], measures: Sequence[QualityMeasure]) -> str:
    """Warning that lists the designs that have not learned and receive no verdict; '' if all have learned."""
    names = [row["name"] for row in rows if is_unlearned(row)]
    if not names:
        return ""
    return tr(
        "Not learned: {names}. Their score ({measure}) is not better than the baseline, so they get no "
        "verdict; train them longer (--budget).",
        names=", ".join(names),
        measure=measures[1].column,
    )
