"""Label the words of texts with a token classifier, and measure the spans. Shapes: N words, L tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.data.batching.windows import TextUnits, encode_windows, label_words
from polyhead.data.readers.spans import OUTSIDE, list_span_labels, tags_to_spans
from polyhead.evaluate.classify import (
    ClassifierEnsemble,
    ClassScores,
    Examples,
    confusion_matrix,
    rank_by_difficulty,
)
from polyhead.evaluate.embed import token_limit
from polyhead.evaluate.encode_batches import iter_batches
from polyhead.generation.engine.request import require_finite
from polyhead.models import TokenClassifier
from polyhead.tokenizers.input_validation import validate_each
from polyhead.tokenizers.tokenizer import Tokenizer


class LabeledSpan(NamedTuple):
    """A span of a text, in characters, with the mean probability of the tags of its words."""

    text: str
    label: str
    start: int
    end: int
    score: float


class SpanScore(NamedTuple):
    """Precision, recall and F1 of the spans of a label, 0 where undefined, and how many there are."""

    precision: float
    recall: float
    f1: float
    support: int


def score_spans(predictions: Sequence[str], references: Sequence[str]) -> dict[str, SpanScore]:
    """Scores of the spans of each label in tags, "" for all labels, by the rules of seqeval.

    A span is right if start, end and label are. Tags of several texts must have an O between texts.
    """
    sides = [set(tags_to_spans(tags)) for tags in (predictions, references)]

    def score(label: str) -> SpanScore:
        a, b = ({span for span in spans if label in ("", span.label)} for spans in sides)
        right = len(a & b)
        return SpanScore(
            right / max(len(a), 1), right / max(len(b), 1), 2 * right / max(len(a) + len(b), 1), len(b)
        )

    return {label: score(label) for label in ("", *sorted({span.label for span in set.union(*sides)}))}


def score_words(tags: ArrayLike, targets: NDArray[np.int64], labels: Sequence[str]) -> dict[str, SpanScore]:
    """``score_spans`` of the words of ``tag_measures``, in the order of the texts, with an O after each."""
    order = np.argsort(targets[:, 1], kind="stable")
    ends = np.flatnonzero(np.diff(targets[order, 1], append=-1) != 1) + 1
    names = np.array([*labels, OUTSIDE], dtype=object)
    sides = (np.insert(np.asarray(ids)[order], ends, -1) for ids in (tags, targets[:, 0]))
    return score_spans(*(names[side].tolist() for side in sides))


def tag_measures(tags: ArrayLike, targets: NDArray[np.int64], labels: Sequence[str]) -> dict[str, float]:
    """F1 of the spans of all labels and its mean over labels, and the share of words with the right tag.

    ``tags`` (N,) are the predicted ones; ``targets`` (N, 3) are the tag, the number of the word, which is one
    more than the one before in the same text, and a hash of the word.
    """
    if not len(targets):
        raise UserError("nothing to evaluate: no words")
    scores = score_words(tags, targets, labels)
    by_label = [score.f1 for label, score in scores.items() if label]
    return {
        "micro_f1": scores[""].f1,
        "f1": float(np.mean(by_label)) if by_label else 0.0,
        "accuracy": float((np.asarray(tags) == targets[:, 0]).mean()),
    }


class WordOutputs(NamedTuple):
    """The words of a text and the log-probabilities of their tags: (N, L)."""

    units: TextUnits
    log_p: Tensor


@torch.inference_mode()
def compute_word_outputs(
    model: TokenClassifier,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    config: GenerationConfig,
    batch_tokens: int,
) -> list[WordOutputs]:
    """The outputs for each text; those of a word are from the window with the most context."""
    encoded = [encode_windows(text, tokenizer, token_limit(config, model.config.max_len)) for text in texts]
    windows = [(i, window) for i, (_, parts) in enumerate(encoded) for window in parts]
    outputs = [
        WordOutputs(units, torch.zeros(len(units.tokens), len(model.config.labels), dtype=torch.float64))
        for units, _ in encoded
    ]
    for numbers, inputs in iter_batches(model, [w.row for _, w in windows], tokenizer, batch_tokens):
        log_p = require_finite(model(*inputs)).double().cpu().log_softmax(-1)
        for row, (i, window) in zip(log_p, (windows[number] for number in numbers), strict=True):
            for word, column in window.iter_words(outputs[i].units):
                outputs[i].log_p[word] = row[column]
    return outputs


def tag_texts(
    model: TokenClassifier,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    config: GenerationConfig,
    batch_tokens: int,
) -> list[list[LabeledSpan]]:
    """The spans of each text, in order."""
    validate_each((texts,), "run.tag")
    results = compute_word_outputs(model, tokenizer, texts, config, batch_tokens)
    labels = model.config.labels
    return [_find_spans(text, output, labels) for text, output in zip(texts, results, strict=True)]


def _find_spans(text: str, output: WordOutputs, labels: Sequence[str]) -> list[LabeledSpan]:
    best, tags = output.log_p.max(1)
    spans = []
    for first, last, label in tags_to_spans([labels[tag] for tag in tags.tolist()]):
        start, end = output.units.spans[first][0], output.units.spans[last - 1][1]
        score = float(best[first:last].exp().mean())
        spans.append(LabeledSpan(text[start:end], label, start, end, score))
    return spans


def measure_tags(
    classifiers: ClassifierEnsemble, examples: Examples, config: GenerationConfig, batch_tokens: int
) -> ClassScores:
    """Loss and scores of spans on texts with spans; the texts with the least probable words are hardest."""
    model: Any = classifiers[0][0]
    labels, texts = model.config.labels, [example.texts[0] for example in examples]
    outputs = compute_word_outputs(model, classifiers[0][1], texts, config, batch_tokens)
    rows, first = list[NDArray[np.int64]](), 0
    for example, output in zip(examples, outputs, strict=True):
        rows.append(label_words(example, output.units, labels, first))
        first += len(rows[-1]) + 1
    targets, log_p = np.concatenate(rows), torch.cat([output.log_p for output in outputs]).numpy()
    tags, label_log_p = log_p.argmax(1), np.take_along_axis(log_p, targets[:, :1], 1)[:, 0]
    measures = {"loss": -float(label_log_p.mean())} | tag_measures(tags, targets, labels)
    scores = score_words(tags, targets, labels)
    measures |= {"precision": scores[""].precision, "recall": scores[""].recall}
    measures |= {f"f1_{label}": score.f1 for label, score in scores.items() if label}
    names = [OUTSIDE, *list_span_labels(labels)]
    kinds = np.array([names.index(tag if tag in names else tag[2:]) for tag in labels])
    spans = [_find_spans(text, output, labels) for text, output in zip(texts, outputs, strict=True)]
    predictions = [", ".join(f"{span.text} = {span.label}" for span in row) for row in spans]
    by_text = np.split(label_log_p, np.cumsum([len(row) for row in rows])[:-1])
    worst = np.array([part.min(initial=0.0) for part in by_text])
    remarks = {
        "loss": tr("nats per word"),
        "micro_f1": tr("F1 of all spans, by the rules of seqeval"),
        "f1": tr("mean F1 of {count} classes", count=len(names) - 1),
        "accuracy": tr("fraction of the words with the right tag"),
        "precision": tr("fraction of the predicted spans that are right"),
        "recall": tr("fraction of the spans that are found"),
    }
    for label, score in scores.items():
        remark = "F1 of {label}: precision {precision:.3f}, recall {recall:.3f}, {support:,} spans"
        remarks[f"f1_{label}"] = tr(remark, label=label, **score._asdict())
    confusion = confusion_matrix(kinds[tags], kinds[targets[:, 0]], len(names))
    hardest = rank_by_difficulty(examples, predictions, worst)
    limit = token_limit(config, model.config.max_len)
    return ClassScores(measures, targets, predictions, confusion, hardest, 0, limit, remarks)
