"""Compare the scores of a model with baselines, in a message with advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyhead.core.i18n import Translate, format_english, tr
from polyhead.evaluate.baselines import Baseline, Baselines, beats_baseline
from polyhead.evaluate.metrics import KNOWN_METRICS
from polyhead.evaluate.run_facts import list_judged, metric_of_fact

_TASK_GOALS = {
    "translation": "it has not learned to translate yet",
    "classification": "it has not learned to beat the majority class yet",
    "multi-label": "it has not learned to beat the frequent labels yet",
    "token-classification": "it has not learned to find spans yet",
    "question-answering": "it has not learned to find answers yet",
    "regression": "it has not learned to beat the mean number yet",
    "language-model": "it has not learned to predict text yet",
    "chat": "it has not learned to answer yet",
    "embedding": "it has not learned which texts belong together yet",
    "dpo": "it has not learned the preferences yet",
    "kto": "it has not learned the preferences yet",
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
_SUCCESS = {  # by the advice to a model that has not learned
    _LOSS_FALLING: "it beats the baseline; the validation loss was still falling: longer training may help",
    _LOSS_FLAT: "it beats the baseline; the validation loss was no longer falling",
    _LOSS_UNKNOWN: "it beats the baseline",
}


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
    failed, goal = _find_failure(values, baselines, task)
    if not failed:
        return None
    text = _format_comparison(failed, values[failed], baselines[failed], tr)
    if not goal:
        return text
    return tr(
        "{score}: {conclusion}; {advice}", score=text, conclusion=tr(goal), advice=tr(choose_advice(losses))
    )


def describe_conclusion(
    values: Mapping[str, float],
    baselines: Baselines,
    task: str,
    losses: Sequence[float | None] = (),
    tr: Translate = tr,
) -> str:
    """Conclusion from scores and their baselines, with advice if a score is not better."""
    (failed, goal), advice = _find_failure(values, baselines, task), choose_advice(losses)
    if not failed:
        is_better = any(
            KNOWN_METRICS[name].is_better(values[name], baselines[name].value)
            for name in list_judged(values.keys() & baselines.keys())
        )
        return tr(_SUCCESS[advice] if is_better else "its scores are perfect, and so are the baseline's")
    conclusion = (
        tr(goal) if goal else tr("{name} does not beat its baseline", name=tr(KNOWN_METRICS[failed].label))
    )
    return tr("{conclusion}; {advice}", conclusion=conclusion, advice=tr(advice))


def _find_failure(values: Mapping[str, float], baselines: Baselines, task: str | None) -> tuple[str, str]:
    """The first score that does not beat its baseline, and what was not learned if it is the main one."""
    judged = list_judged(values.keys() & baselines.keys())
    failed = next((name for name in judged if not beats_baseline(name, values[name], baselines[name])), "")
    return failed, _TASK_GOALS.get(task or "", "") if judged[:1] == [failed] else ""


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
    label, guess = tr(KNOWN_METRICS[name].label), baseline.describe_guess(tr)
    return tr(text, name=label, value=score, baseline=base, guess=guess)


def add_baseline_facts(facts: Mapping[str, str], split: str, baselines: Baselines) -> dict[str, str]:
    """The facts of a run, with the baseline after each score of a split; in English, as README.md is."""
    result: dict[str, str] = {}
    for fact, text in facts.items():
        result[fact] = text
        baseline = baselines.get(metric_of_fact(fact, split) or "")
        if baseline is not None:
            score_text = text.split()[0]
            digits, guess = len(score_text.partition(".")[2]), baseline.describe_guess(format_english)
            result[f"{fact} baseline"] = f"{baseline.value:.{digits}f} ({guess})"
    return result
