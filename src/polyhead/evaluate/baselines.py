"""Baselines: what a guess scores that has only counted the training text, in the same measures as a model.

Shapes: V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyhead.analysis.class_metrics import class_measures
from polyhead.analysis.metrics import evaluated
from polyhead.analysis.perplexity import Perplexity
from polyhead.core.i18n import Translate, tr
from polyhead.data.arrays import Ints

LESS_IS_BETTER = {"loss", "ppl", "word_ppl", "bits_per_char"}
CHUNK = 1 << 20  # tokens that are counted at once
SHOWN = 40  # characters of a guessed text
PERCENT = {"bleu", "bleu-lc", "chrf"}  # their best value is 100, that of a share is 1


class Baseline(NamedTuple):
    """The score of a guess, and which guess that is."""

    value: float
    guess: str  # "majority class", "copied source", ...: a key of the message catalogs
    detail: str = ""  # the class or the text that is guessed

    def describe(self, value: str) -> str:
        """Its ``value``, as the score beside it is written, and the guess."""
        return tr("baseline {value}: {guess}", value=value, guess=self.describe_guess())

    def describe_guess(self, tr: Translate = tr) -> str:
        """The guess with what is guessed, in the current language."""
        detail = self.detail if len(self.detail) <= SHOWN else f"{self.detail[: SHOWN - 1]}…"
        return tr(self.guess) + (f" {detail!r}" if detail else "")


Baselines = Mapping[str, Baseline]
"""By the name of the measure: "accuracy", "bleu", "ppl"."""


def beats(name: str, value: float, baseline: Baseline) -> bool:
    """Whether a score is better than its baseline, or perfect where the baseline is perfect as well."""
    if name in LESS_IS_BETTER:
        return value < baseline.value
    best = 100.0 if name in PERCENT else 1.0
    return value > baseline.value or value >= best


def class_baselines(counts: Mapping[str, int], wanted: ArrayLike, labels: Sequence[str]) -> Baselines:
    """The most frequent class of the training text for every text; the loss is that of the class frequencies.

    ``counts`` are texts of each label in the training text, of which one more of each is assumed for the loss;
    ``wanted`` the right classes of the evaluation text, as numbers of ``labels``.
    """
    wanted = np.asarray(wanted, dtype=np.int64)
    known = np.array([counts.get(label, 0) for label in labels], dtype=np.float64)
    majority = int(known.argmax())
    measures = class_measures(np.full(len(wanted), majority), wanted, labels)
    log_p = np.log((known + 1) / (known.sum() + len(known)))
    loss = Baseline(-float(log_p[wanted].mean()), "class frequencies")
    found = {name: Baseline(value, "majority class", labels[majority]) for name, value in measures.items()}
    return {"loss": loss, **found}


def translation_baselines(
    sources: Sequence[str], references: Sequence[str], lang: str = "", frequent: str | None = None
) -> Baselines:
    """BLEU and chrF of the better of two guesses: the source as it is, and the most frequent target for every line.

    The source is no guess where it is the reference; ``frequent`` is the target, if it is known.
    """
    guesses: list[tuple[str, str, list[str]]] = []
    if list(sources) != list(references):
        guesses.append(("copied source", "", list(sources)))
    if frequent is not None:
        guesses.append(("most frequent target", frequent, [frequent] * len(references)))
    found: dict[str, Baseline] = {}
    for guess, detail, outputs in guesses:
        for score in evaluated(outputs, references, lang).scores:
            if score.name not in found or score.value > found[score.name].value:
                found[score.name] = Baseline(score.value, guess, detail)
    return found


def unigram_log_probs(counts: Ints) -> NDArray[np.float64]:
    """log p of each token (V,) by its count in the training text (V,), one more of each assumed (Laplace)."""
    more = counts.astype(np.float64) + 1
    return np.asarray(np.log(more / more.sum()))


def unigram_baselines(counts: Ints, asked: Ints, words: int = 0, characters: int = 0) -> Baselines:
    """Loss and perplexity of token frequencies, and the accuracy of the most frequent token.

    ``counts`` (V,) are those of the training text, ``asked`` (V,) how often a model is asked for each token of the
    evaluation text; with its ``words`` and ``characters`` also perplexity by word and bits by character.
    """
    total = int(asked.sum())
    if not total:
        return {}
    of = Perplexity(-float(asked @ unigram_log_probs(counts)), total, words, characters)
    found = {"loss": of.loss, "ppl": of.per_token}
    if words:
        found["word_ppl"] = of.per_word
    if characters:
        found["bits_per_char"] = of.bits_per_character
    share = float(asked[int(counts.argmax())] / total)
    unigram = {name: Baseline(value, "unigram") for name, value in found.items()}
    return {**unigram, "accuracy": Baseline(share, "most frequent token")}


def count_tokens(several: Iterable[Ints], vocab_size: int) -> Ints:
    """How often each token occurs: (V,); negative numbers are no tokens."""
    counts: Ints = np.zeros(vocab_size, dtype=np.int64)
    for ids in several:
        for start in range(0, len(ids), CHUNK):
            some = ids[start : start + CHUNK]
            counts += np.bincount(some[some >= 0], minlength=vocab_size)
    return counts
