"""Baselines: scores of trivial predictions from counts of the training text, in the metrics of a model.

Shapes: V tokens of the vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from polyhead.core.atomic_io import file_exists, read_regular_file, replace_file
from polyhead.core.errors import UserError
from polyhead.core.i18n import Translate, tr
from polyhead.data.readers.spans import OUTSIDE
from polyhead.data.stores.build_cache import IdArray
from polyhead.evaluate.classify import class_measures
from polyhead.evaluate.metrics import KNOWN_METRICS, References, evaluate_translations, reference_lists
from polyhead.evaluate.perplexity import Perplexity
from polyhead.evaluate.tagging import tag_measures
from polyhead.evaluate.text_numbers import multi_label_measures

BASELINE_FILE = "baseline.json"
_MAX_FILE_BYTES = 1 << 26  # maximum file size
MAX_VOCABULARY = 1 << 24

log = logging.getLogger(__name__)


class TrainingCounts(BaseModel):
    """Counts of the training text; each task fills in those that its baselines need."""

    model_config = ConfigDict(frozen=True)

    labels: dict[str, NonNegativeInt] = {}  # number of texts of each class
    target: str | None = None  # the most frequent target
    texts: NonNegativeInt = 0  # of which each has any number of labels, or a number
    mean: FiniteFloat = 0.0  # of the numbers
    words: dict[int, str] = {}  # hash of a word -> its most frequent tag, if that is not O
    vocab_size: int = Field(0, ge=0, le=MAX_VOCABULARY)
    tokens: dict[int, NonNegativeInt] = {}  # counts by id, without zeros

    @classmethod
    def from_token_counts(cls, counts: IdArray, target: str | None = None) -> TrainingCounts:
        """From the count of each token (V,)."""
        ids = np.flatnonzero(counts)
        tokens = dict(zip(ids.tolist(), counts[ids].tolist(), strict=True))
        return cls(vocab_size=len(counts), tokens=tokens, target=target)

    def token_counts(self) -> IdArray:
        """The count of each token: (V,)."""
        counts: IdArray = np.zeros(self.vocab_size, dtype=np.int64)
        for token, count in self.tokens.items():
            if 0 <= token < self.vocab_size:
                counts[token] = count
        return counts


def write_counts(directory: Path, counts: TrainingCounts) -> None:
    """Write baseline.json."""
    text = counts.model_dump_json(exclude_defaults=True)
    replace_file(directory / BASELINE_FILE, f"{text}\n".encode())


def read_counts(directory: Path | None) -> TrainingCounts | None:
    """Read the counts of a run directory; None without them, or if the file is damaged, which is logged."""
    if directory is None:
        return None
    try:
        if not file_exists(directory / BASELINE_FILE):
            return None
        return TrainingCounts.model_validate_json(
            read_regular_file(directory / BASELINE_FILE, max_bytes=_MAX_FILE_BYTES)
        )
    except (UserError, ValidationError) as error:
        log.warning(
            "no baselines, since %s cannot be read: %s", directory / BASELINE_FILE, str(error).split("\n")[0]
        )
        return None


_CHUNK_SIZE = 1 << 20  # tokens counted at once
_MAX_GUESS_CHARS = 40  # characters of a predicted text that are shown


class Baseline(NamedTuple):
    """The score of a trivial prediction, and the name of the prediction."""

    value: float
    guess: str  # "majority class", "copied source", ...: a key of the message catalogs
    detail: str = ""  # the predicted class or text

    def describe(self, value: str) -> str:
        """``value``, formatted like the score of the model, and the prediction."""
        return tr("baseline {value}: {guess}", value=value, guess=self.describe_guess())

    def describe_guess(self, tr: Translate = tr) -> str:
        """The name of the prediction with its class or text, in the current language."""
        detail = (
            self.detail if len(self.detail) <= _MAX_GUESS_CHARS else f"{self.detail[: _MAX_GUESS_CHARS - 1]}…"
        )
        return tr(self.guess) + (f" {detail!r}" if detail else "")


Baselines = Mapping[str, Baseline]
"""By the name of the metric: "accuracy", "bleu", "ppl"."""


def beats_baseline(name: str, value: float, baseline: Baseline) -> bool:
    """Whether a score is better than its baseline, or perfect if the baseline is perfect as well."""
    metric = KNOWN_METRICS[name]
    is_perfect = not metric.lower_is_better and value >= (100.0 if metric.is_percent else 1.0)
    return is_perfect or metric.is_better(value, baseline.value)


def class_baselines(counts: Mapping[str, int], targets: ArrayLike, labels: Sequence[str]) -> Baselines:
    """Predict the most frequent training class for every text; the loss is that of the class frequencies.

    ``counts`` are the training texts of each label, with add-one smoothing for the loss; ``targets`` are the
    true classes of the evaluation text, as indices into ``labels``.
    """
    targets = np.asarray(targets, dtype=np.int64)
    class_counts = np.array([counts.get(label, 0) for label in labels], dtype=np.float64)
    majority = int(class_counts.argmax())
    measures = class_measures(np.full(len(targets), majority), targets, labels)
    log_p = np.log((class_counts + 1) / (class_counts.sum() + len(class_counts)))
    loss = Baseline(-float(log_p[targets].mean()), "class frequencies")
    baselines = {
        name: Baseline(value, "majority class", labels[majority]) for name, value in measures.items()
    }
    return {"loss": loss, **baselines}


def multi_label_baselines(counts: TrainingCounts, targets: NDArray[Any], labels: Sequence[str]) -> Baselines:
    """Predict for every text the most frequent labels: as many as the training texts show to be best.

    ``targets`` are 0 or 1 for each text and label: (N, L). The loss is that of the label frequencies.
    """
    label_counts = np.array([counts.labels.get(label, 0) for label in labels], dtype=np.float64)
    p = (label_counts + 1) / (counts.texts + 2)
    order = np.argsort(-label_counts, kind="stable")
    right, predicted = np.cumsum(label_counts[order]), counts.texts * np.arange(1, len(labels) + 1)
    frequent = order[: 1 + int(np.argmax(2 * right / (predicted + right[-1])))]
    measures = multi_label_measures(
        np.broadcast_to(np.isin(np.arange(len(labels)), frequent), targets.shape), targets
    )
    loss = -float((targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean())
    names = ", ".join(labels[i] for i in frequent)
    baselines = {name: Baseline(value, "frequent labels", names) for name, value in measures.items()}
    return {"loss": Baseline(loss, "label frequencies"), **baselines}


def number_baselines(counts: TrainingCounts, targets: NDArray[Any]) -> Baselines:
    """Predict the mean of the training texts for every text; ``targets`` are (N, 1)."""
    mean = {"pearson": 0.0, "spearman": 0.0, "loss": float(((targets - counts.mean) ** 2).mean())}
    return {name: Baseline(value, "mean number") for name, value in mean.items()}


def tag_baselines(counts: TrainingCounts, targets: NDArray[np.int64], labels: Sequence[str]) -> Baselines:
    """Predict for each word its most frequent tag of the training text, O for others.

    The loss is that of the tag frequencies; ``targets`` (N, 3) are those of ``tag_measures``.
    """
    numbers = {tag: i for i, tag in enumerate(labels)}
    tags = [numbers[counts.words.get(word, OUTSIDE)] for word in targets[:, 2].tolist()]
    baselines = {name: Baseline(x, "word by word") for name, x in tag_measures(tags, targets, labels).items()}
    return baselines | {"loss": class_baselines(counts.labels, targets[:, 0], labels)["loss"]}


def translation_baselines(
    sources: Sequence[str],
    references: References,
    lang: str = "",
    frequent_target: str | None = None,
    metrics: Sequence[str] = (),
) -> Baselines:
    """Scores of the better of two predictions: the source, or the most frequent target for each line.

    The source is left out if it equals a reference in all lines; ``frequent_target`` is the most frequent
    target, if known. Metrics with a model of their own have no baseline.
    """
    if metrics and not (metrics := [name for name in metrics if name in KNOWN_METRICS]):
        return {}
    guesses: list[tuple[str, str, list[str]]] = []
    if any(source not in texts for source, texts in zip(sources, reference_lists(references), strict=True)):
        guesses.append(("copied source", "", list(sources)))
    if frequent_target is not None:
        guesses.append(("most frequent target", frequent_target, [frequent_target] * len(references)))
    baselines: dict[str, Baseline] = {}
    for guess, detail, outputs in guesses:
        for score in evaluate_translations(outputs, references, lang, metrics).scores:
            known, metric = baselines.get(score.name), KNOWN_METRICS[score.name]
            if known is None or metric.is_better(score.value, known.value):
                baselines[score.name] = Baseline(score.value, guess, detail)
    return baselines


def unigram_baselines(
    counts: IdArray, target_counts: IdArray, n_words: int = 0, n_chars: int = 0
) -> Baselines:
    """Loss and perplexity of token frequencies, and the accuracy of the most frequent token.

    ``counts`` (V,) are those of the training text, ``target_counts`` (V,) those of the labels in the
    evaluation text; with its ``n_words`` and ``n_chars`` also perplexity per word and bits per character.
    """
    total = int(target_counts.sum())
    if not total:
        return {}
    smoothed_counts = counts.astype(np.float64) + 1  # Laplace
    log_p = np.log(smoothed_counts / smoothed_counts.sum())
    result = Perplexity(-float(target_counts @ log_p), total, n_words, n_chars)
    unknown = {name for name, n in {"word_ppl": n_words, "bits_per_char": n_chars}.items() if not n}
    values = result.compute_metrics()
    unigram = {name: Baseline(value, "unigram") for name, value in values.items() if name not in unknown}
    share = float(target_counts[int(counts.argmax())] / total)
    return {**unigram, "accuracy": Baseline(share, "most frequent token")}


def count_tokens(id_arrays: Iterable[IdArray], vocab_size: int) -> IdArray:
    """The count of each token: (V,); negative ids are ignored."""
    counts: IdArray = np.zeros(vocab_size, dtype=np.int64)
    for ids in id_arrays:
        for start in range(0, len(ids), _CHUNK_SIZE):
            chunk = ids[start : start + _CHUNK_SIZE]
            counts += np.bincount(chunk[chunk >= 0], minlength=vocab_size)
    return counts
