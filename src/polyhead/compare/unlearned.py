"""Baselines beside the scores of designs, and designs whose score is not better than its baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyhead.analysis.recovered import perplexity_of
from polyhead.compare.tasks.base import Measure
from polyhead.core.i18n import tr
from polyhead.evaluate.baselines import Baseline

Row = Mapping[str, Any]


def is_unlearned(row: Row) -> bool:
    """Whether a design is known not to have learned."""
    return row.get("learned") is False


def baseline_rows(rows: Sequence[Row], measures: Sequence[Measure]) -> list[dict[str, Any]]:
    """A row for the baselines of some designs, or several where designs have others, as with other tokens."""
    found: list[dict[str, Any]] = []
    for row in rows:
        known = {name: Baseline(**one) for name, one in (row.get("baselines") or {}).items()}
        made: dict[str, Any] = {"base": False, "name": describe_baselines(known, measures)}
        for measure in measures:
            baseline = known.get(measure.name)
            made[measure.name] = baseline.value if baseline else None
            made |= {f"{measure.name}_{part}": None for part in ("spread", "interval", "p")}
        made["ppl"] = None if made["loss"] is None else perplexity_of(made["loss"])
        if known and made not in found:
            found.append(made)
    return found


def describe_baselines(known: Mapping[str, Baseline], measures: Sequence[Measure]) -> str:
    """What is guessed by the baseline of the score, and of other measures where that is something else."""
    guesses = {m.column: known[m.name].describe_guess() for m in measures if m.name in known}
    score = guesses.get(measures[1].column)
    others = [f"{column}: {guess}" for column, guess in guesses.items() if guess != score]
    return "; ".join([tr("baseline") + (f": {score}" if score else ""), *others])


def describe_unlearned(rows: Sequence[Row], measures: Sequence[Measure]) -> str:
    """Which designs have not learned, and that nothing is said about which of them is better; nothing if all have."""
    names = [row["name"] for row in rows if is_unlearned(row)]
    if not names:
        return ""
    return tr(
        "Not learned: {names}. The score ({measure}) is not better than the baseline, so no verdict is given "
        "between such designs; train them longer (--budget).",
        names=", ".join(names),
        measure=measures[1].column,
    )
