"""The scores among the facts of a finished run, those of its README.md; imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from polyhead.core.i18n import tr, translate_fact
from polyhead.evaluate.metrics import KNOWN_METRICS

_METRIC_OF_COLUMN = {metric.column: metric.name for metric in KNOWN_METRICS.values()}
_METRIC_OF_COLUMN["F1 of replaced tokens"] = "f1"
_MAX_SCORES = 2  # in one line


def list_judged(names: Collection[str]) -> list[str]:
    """The metrics among ``names`` that are compared with baselines, the main one first."""
    return [metric.name for metric in KNOWN_METRICS.values() if metric.is_judged and metric.name in names]


class FinalScore(NamedTuple):
    """A score of a finished run and its baseline, as README.md has them."""

    name: str
    value: str
    baseline: str  # "5.12 (copied source)"; empty if there is none


def final_scores(facts: Mapping[str, str]) -> tuple[str, list[FinalScore]]:
    """The split of the facts that was evaluated last, and its judged scores, the main one first."""
    for split in ("test", "valid"):
        fact_names = {name: fact for fact in facts if (name := metric_of_fact(fact, split))}
        if judged := list_judged(fact_names):
            scores = [(name, facts[fact_names[name]], f"{fact_names[name]} baseline") for name in judged]
            return split, [
                FinalScore(name, text.split()[0], facts.get(key, "")) for name, text, key in scores
            ]
    return "", []


def describe_final_scores(facts: Mapping[str, str]) -> str:
    """``test BLEU 38.81 (baseline 5.12, copied source), chrF 62.43 (baseline 20.10)``; empty without any."""
    split, scores = final_scores(facts)
    texts, last_guess = [], ""
    for score in scores[:_MAX_SCORES]:
        name = tr(KNOWN_METRICS[score.name].label)
        value, _, guess = score.baseline.partition(" ")
        text = "{name} {value} (baseline {baseline}, {guess})"
        if not value:
            text = "{name} {value}"
        elif guess == last_guess:
            text = "{name} {value} (baseline {baseline})"
        last_guess = guess
        texts.append(
            tr(text, name=name, value=score.value, baseline=value, guess=translate_fact(guess[1:-1]))
        )
    return f"{tr(split)} {tr(', ').join(texts)}" if texts else ""


def scores_from_facts(facts: Mapping[str, str], split: str) -> dict[str, float]:
    """The scores of a split among the facts, parsed from the first word of each."""
    texts_by_metric = ((metric_of_fact(fact, split), text) for fact, text in facts.items())
    return {name: float(text.split()[0]) for name, text in texts_by_metric if name}


def metric_of_fact(fact: str, split: str) -> str | None:
    """The metric of a fact such as "valid perplexity"; None for other facts."""
    if not fact.startswith(f"{split} "):
        return None
    name = fact.removeprefix(f"{split} ")
    return _METRIC_OF_COLUMN.get(name, name if name in KNOWN_METRICS or name.startswith("f1_") else None)
