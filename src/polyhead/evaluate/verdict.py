"""A message for a model that is no better than a baseline, with advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyhead.core.i18n import Translate, format_english, tr
from polyhead.evaluate.baselines import Baseline, Baselines, beats_baseline
from polyhead.evaluate.metrics import KNOWN_METRICS

_METRIC_OF_COLUMN = {metric.column: metric.name for metric in KNOWN_METRICS.values()}
_METRIC_OF_COLUMN["F1 of replaced tokens"] = "f1"
_TASK_GOALS = {
    "translation": "it has not learned to translate yet",
    "classification": "it has not learned to beat the majority class yet",
    "language-model": "it has not learned to predict text yet",
    "chat": "it has not learned to answer yet",
    "masked-lm": "it has not learned to predict masked tokens yet",
    "denoising": "it has not learned to restore text yet",
    "replaced-token-detection": "it has not learned to find replaced tokens yet",
}
_LOSS_FALLING = (
    "the validation loss was still falling: train longer (train.steps, train.epochs), or with a "
    "higher train.lr"
)
_LOSS_FLAT = "the validation loss was no longer falling: try another train.lr, a larger model or more text"
_LOSS_UNKNOWN = "train longer (train.steps, train.epochs)"


def format_score(name: str, value: float) -> str:
    """A score with the digits of its metric."""
    metric = KNOWN_METRICS[name]
    return f"{value:.2f}" if metric.is_percent or metric.lower_is_better else f"{value:.4f}"


def describe_verdict(
    values: Mapping[str, float],
    baselines: Baselines,
    task: str | None,
    losses: Sequence[float | None] = (),
    tr: Translate = tr,
) -> str | None:
    """A message on the first score that does not beat its baseline, with advice; None if all do.

    ``losses`` are the validation losses of all evaluations of the training, in order.
    """
    judged = [
        m.name for m in KNOWN_METRICS.values() if m.is_judged and m.name in values and m.name in baselines
    ]
    failed = [name for name in judged if not beats_baseline(name, values[name], baselines[name])]
    if not failed:
        return None
    text = _format_comparison(failed[0], values[failed[0]], baselines[failed[0]], tr)
    if failed[0] != judged[0] or task not in _TASK_GOALS:
        return text
    return tr(
        "{score}: {conclusion}; {advice}",
        score=text,
        conclusion=tr(_TASK_GOALS[task]),
        advice=tr(choose_advice(losses)),
    )


def choose_advice(losses: Sequence[float | None]) -> str:
    """Advice by whether the last of several losses was the lowest."""
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if len(finite) < 2:
        return _LOSS_UNKNOWN
    return _LOSS_FALLING if finite[-1] < min(finite[:-1]) else _LOSS_FLAT


def _format_comparison(name: str, value: float, baseline: Baseline, tr: Translate) -> str:
    """For example: BLEU 0.08 is below the baseline 0.30 (copied source)."""
    score, base = format_score(name, value), format_score(name, baseline.value)
    if score == base:
        text = "{name} {value} is no better than the baseline {baseline} ({guess})"
    elif KNOWN_METRICS[name].lower_is_better:
        text = "{name} {value} is above the baseline {baseline} ({guess}; lower is better)"
    else:
        text = "{name} {value} is below the baseline {baseline} ({guess})"
    return tr(
        text,
        name=tr(KNOWN_METRICS[name].label),
        value=score,
        baseline=base,
        guess=baseline.describe_guess(tr),
    )


def add_baseline_facts(facts: Mapping[str, str], split: str, baselines: Baselines) -> dict[str, str]:
    """The facts of a run, with the baseline after each score of a split; in English, as README.md is."""
    result: dict[str, str] = {}
    for fact, text in facts.items():
        result[fact] = text
        baseline = baselines.get(metric_of_fact(fact, split) or "")
        if baseline is not None:
            score_text = text.split()[0]
            digits = len(score_text.partition(".")[2])
            result[f"{fact} baseline"] = (
                f"{baseline.value:.{digits}f} ({baseline.describe_guess(format_english)})"
            )
    return result


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
