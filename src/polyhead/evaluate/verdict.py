"""A message for a model that is no better than a baseline, with advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyhead.core.i18n import Translate, format_english, tr
from polyhead.evaluate.baselines import LOWER_IS_BETTER, PERCENT_METRICS, Baseline, Baselines, beats_baseline

METRIC_NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy": "accuracy",
    "f1": "F1",
    "mcc": "MCC",
    "ppl": "perplexity",
    "word_ppl": "perplexity per word",
    "bits_per_char": "bits per character",
}
"""The metrics that are compared, the main one of a task first, and their names in a message."""
METRIC_ALIASES = {
    "perplexity": "ppl",
    "F1 of replaced tokens": "f1",
    "bleu-lc": "bleu-lc",
    "BLEU": "bleu",
    "chrF": "chrf",
    "macro F1": "f1",
    "MCC": "mcc",
    "word ppl": "word_ppl",
    "bits/char": "bits_per_char",
}
"""Other names of metrics, in the facts of a run and in comparisons."""
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
    return f"{value:.2f}" if name in PERCENT_METRICS or name in LOWER_IS_BETTER else f"{value:.4f}"


def has_learned(values: Mapping[str, float], baselines: Baselines) -> bool | None:
    """Whether the first of ``METRIC_NAMES`` that has a baseline beats it; None if none has one."""
    name = next((name for name in METRIC_NAMES if name in values and name in baselines), None)
    return None if name is None else beats_baseline(name, values[name], baselines[name])


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
    judged = [name for name in METRIC_NAMES if name in values and name in baselines]
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
    elif name in LOWER_IS_BETTER:
        text = "{name} {value} is above the baseline {baseline} ({guess}; lower is better)"
    else:
        text = "{name} {value} is below the baseline {baseline} ({guess})"
    return tr(
        text, name=tr(METRIC_NAMES[name]), value=score, baseline=base, guess=baseline.describe_guess(tr)
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
    return METRIC_ALIASES.get(
        name, name if name in METRIC_NAMES or name == "loss" or name.startswith("f1_") else None
    )
