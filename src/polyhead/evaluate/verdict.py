"""A sentence for a model that is no better than a guess, with what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from polyhead.core.i18n import Translate, format_english, tr
from polyhead.evaluate.baselines import LESS_IS_BETTER, PERCENT, Baseline, Baselines, beats

NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy": "accuracy",
    "f1": "F1",
    "mcc": "MCC",
    "ppl": "perplexity",
    "word_ppl": "perplexity of a word",
    "bits_per_char": "bits of a character",
}
"""The measures that are judged, the chief one of a task first, as they are called in a sentence."""
ALSO = {
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
"""Other names of measures in the facts of a run, and in comparisons."""
GOALS = {
    "translation": "it has not learned to translate yet",
    "classification": "it has not learned to beat the majority class yet",
    "language-model": "it has not learned to predict text yet",
    "chat": "it has not learned to answer yet",
    "masked-lm": "it has not learned to fill in hidden tokens yet",
    "denoising": "it has not learned to restore text yet",
    "replaced-tokens": "it has not learned to find replaced tokens yet",
}
FALLING = "the validation loss was still falling: train longer (train.steps, train.epochs), or with a higher train.lr"
FLAT = "the validation loss was no longer falling: try another train.lr, a larger model or more text"
UNKNOWN = "train longer (train.steps, train.epochs)"


def format_score(name: str, value: float) -> str:
    """A score with the digits of its measure."""
    return f"{value:.2f}" if name in PERCENT or name in LESS_IS_BETTER else f"{value:.4f}"


def has_learned(values: Mapping[str, float], baselines: Baselines) -> bool | None:
    """Whether the first of ``NAMES`` that has a baseline is better than that; None where none has one."""
    name = next((name for name in NAMES if name in values and name in baselines), None)
    return None if name is None else beats(name, values[name], baselines[name])


def describe(
    values: Mapping[str, float],
    baselines: Baselines,
    task: str | None,
    losses: Sequence[float | None] = (),
    tr: Translate = tr,
) -> str | None:
    """A sentence on the first score that is at or below its baseline, and on what to do; None where all are better.

    ``losses`` are those of the validation text at each evaluation of the training, in order.
    """
    judged = [name for name in NAMES if name in values and name in baselines]
    failed = [name for name in judged if not beats(name, values[name], baselines[name])]
    if not failed:
        return None
    text = _compared(failed[0], values[failed[0]], baselines[failed[0]], tr)
    if failed[0] != judged[0] or task not in GOALS:
        return text
    return tr(
        "{score}: {conclusion}; {advice}",
        score=text,
        conclusion=tr(GOALS[task]),
        advice=tr(advice(losses)),
    )


def advice(losses: Sequence[float | None]) -> str:
    """What to try, by whether the last of several losses was the lowest."""
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if len(finite) < 2:
        return UNKNOWN
    return FALLING if finite[-1] < min(finite[:-1]) else FLAT


def _compared(name: str, value: float, baseline: Baseline, tr: Translate) -> str:
    """BLEU 0.08 is below the baseline 0.30 (copied source)."""
    own, base = format_score(name, value), format_score(name, baseline.value)
    if own == base:
        text = "{name} {value} is no better than the baseline {baseline} ({guess})"
    elif name in LESS_IS_BETTER:
        text = "{name} {value} is above the baseline {baseline} ({guess}; lower is better)"
    else:
        text = "{name} {value} is below the baseline {baseline} ({guess})"
    return tr(text, name=tr(NAMES[name]), value=own, baseline=base, guess=baseline.describe_guess(tr))


def with_baselines(facts: Mapping[str, str], split: str, baselines: Baselines) -> dict[str, str]:
    """The facts of a run, each score of a split followed by its baseline; in English, as README.md is."""
    found: dict[str, str] = {}
    for fact, text in facts.items():
        found[fact] = text
        baseline = baselines.get(measure_of(fact, split) or "")
        if baseline is not None:
            like = text.split()[0]
            digits = len(like.partition(".")[2])
            found[f"{fact} baseline"] = (
                f"{baseline.value:.{digits}f} ({baseline.describe_guess(format_english)})"
            )
    return found


def values_of(facts: Mapping[str, str], split: str) -> dict[str, float]:
    """The scores of a split among the facts, whose texts begin with their number."""
    named = ((measure_of(fact, split), text) for fact, text in facts.items())
    return {name: float(text.split()[0]) for name, text in named if name}


def measure_of(fact: str, split: str) -> str | None:
    """The measure that a fact such as "valid perplexity" is about; None for another fact."""
    if not fact.startswith(f"{split} "):
        return None
    name = fact.removeprefix(f"{split} ")
    return ALSO.get(name, name if name in NAMES or name == "loss" or name.startswith("f1_") else None)
