"""Samples of a classifier: predictions, accuracy by class and by length, and the confusion matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from torch import Tensor

from polyhead.config.model import PER_TOKEN, SINGLE_LABEL
from polyhead.data.batching.length_bucketing import LengthBucketSampler
from polyhead.data.readers.labeled import read_labeled
from polyhead.evaluate.classify import MAX_MATRIX_CLASSES, confusion_matrix, list_confusions
from polyhead.run.run import Run
from polyhead.train.samples.base import (
    collect_self_attention,
    decode_readable,
    group_mean,
    is_short,
    make_examples,
    spread_evenly,
    take_samples,
)
from polyhead.train.tasks.classification import LabeledTextTask, open_split_labeled
from polyhead.viz.samples import (
    LONGEST_GROUP_NAME,
    Breakdown,
    Confusion,
    Group,
    Samples,
    break_down,
    group_by_length,
    group_by_name,
    spread_by_length,
)

_MAX_TEXTS, _TEXT_STRIDE = 256, 8  # classified texts: at most COUNT, of a long file one in SHARE
MIN_TEXTS = 32  # classified texts of a short file
_N_SPREAD, _N_MISTAKES = 8, 24  # shown texts: some of all lengths, and mistakes
MAX_BARS = 40


@take_samples.register
def classification_samples(task: LabeledTextTask, run: Run) -> Samples:
    """Predictions for validation texts, evenly spread over the file."""
    if task.problem_type in PER_TOKEN:
        return _span_samples(task, run)
    if task.problem_type != SINGLE_LABEL:
        return _text_label_samples(task, run)
    count = min(_MAX_TEXTS, max(MIN_TEXTS, len(task.valid) // _TEXT_STRIDE))
    rows = spread_evenly(len(task.valid), count)
    texts = [_decode_row(task, run, int(row)) for row in rows]
    references, lengths = task.valid.labels[rows].tolist(), task.valid.lengths[rows].tolist()
    probabilities = _compute_outputs(task, run, rows, lambda logits: logits.float().softmax(-1))
    predictions, confidences = probabilities.argmax(1).tolist(), probabilities.max(1).tolist()
    label_probabilities = probabilities[range(len(rows)), references].tolist()
    is_correct = [a == b for a, b in zip(predictions, references, strict=True)]
    accuracy = group_mean([100 * correct for correct in is_correct])
    spread_rows = spread_by_length(texts, _N_SPREAD)
    mistakes = [i for i, correct in enumerate(is_correct) if not correct and i not in spread_rows]
    mistakes = sorted(mistakes, key=label_probabilities.__getitem__)[:_N_MISTAKES]
    classes = group_by_name(task.labels[label] for label in references)
    worst_classes = sorted(classes, key=lambda name: accuracy(classes[name]))[:MAX_BARS]
    counts = confusion_matrix(predictions, references, len(task.labels))
    confusions = [
        Group(f"{task.labels[i]} → {task.labels[j]}", int(counts[i].sum()), count)
        for i, j, count in list_confusions(counts)
    ]
    has_matrix = len(task.labels) <= MAX_MATRIX_CLASSES
    short_texts = [
        texts[i] for i in spread_rows if is_short(run.tokenizer, texts[i]) and " | " not in texts[i]
    ]
    return Samples(
        description="Predictions for validation texts: some of all lengths, then errors, the hardest first.",
        columns=("Text", "Prediction", "Label"),
        differences="whole",
        examples=[
            {
                "source": texts[i],
                "output": task.labels[predictions[i]],
                "reference": task.labels[references[i]],
                "note": f"p = {confidences[i]:.2f}"
                + ("" if is_correct[i] else f"; {task.labels[references[i]]}: {label_probabilities[i]:.2f}"),
            }
            for i in [*spread_rows, *mistakes]
        ],
        breakdowns=[
            break_down(
                "Accuracy (%)", "class", {name: classes[name] for name in sorted(worst_classes)}, accuracy
            ),
            break_down("Accuracy (%)", "length in tokens", group_by_length(lengths), accuracy),
            *([] if has_matrix else [Breakdown("Errors", "label → prediction", confusions)]),
        ],
        confusion=Confusion(list(task.labels), counts.tolist()) if has_matrix else None,
        attention=collect_self_attention(run, short_texts),
    )


def _text_label_samples(task: LabeledTextTask, run: Run) -> Samples:
    """Labels or numbers of validation texts, the ones with the largest errors at the end."""
    rows = spread_evenly(len(task.valid), _MAX_TEXTS)
    texts, lengths = [_decode_row(task, run, int(row)) for row in rows], task.valid.lengths[rows].tolist()
    logits = _compute_outputs(task, run, rows, Tensor.double)
    targets = task.valid.targets(rows)
    is_number = task.problem_type == "regression"
    outputs = logits if is_number else 1 / (1 + np.exp(-logits))
    errors = np.abs(outputs - targets).mean(1)
    spread_rows = spread_by_length(texts, _N_SPREAD)
    hardest = [i for i in np.argsort(-errors, kind="stable").tolist() if i not in spread_rows][:_N_MISTAKES]

    def name(row: np.ndarray) -> str:
        names = (label for label, x in zip(task.labels, row, strict=True) if x >= run.generation.threshold)
        return f"{row[0]:.4g}" if is_number else ", ".join(names)

    def mean_error(indices: list[int]) -> float:
        return float(errors[indices].mean())

    breakdowns = [break_down("Mean error", "length in tokens", group_by_length(lengths), mean_error)]
    if not is_number:
        predicted, expected = outputs >= run.generation.threshold, targets > 0.5
        both = predicted.sum(0) + expected.sum(0)
        f1 = 200 * (predicted & expected).sum(0) / np.maximum(both, 1)
        worst = sorted(np.flatnonzero(both).tolist(), key=lambda i: f1[i])[:MAX_BARS]
        groups = [Group(task.labels[i][:LONGEST_GROUP_NAME], int(expected[:, i].sum()), f1[i]) for i in worst]
        breakdowns.insert(0, Breakdown("F1 (%)", "label", groups))
    shown = [*spread_rows, *hardest]
    return Samples(
        description="Predictions for validation texts: some of all lengths, then the largest errors.",
        columns=("Text", "Prediction", "Label"),
        differences="none" if is_number else "whole",
        examples=make_examples(
            [texts[i] for i in shown], map(name, outputs[shown]), map(name, targets[shown])
        ),
        breakdowns=breakdowns,
    )


def _span_samples(task: LabeledTextTask, run: Run) -> Samples:
    """Spans, or answers, of validation texts, those with the least probable words at the end."""
    assert run.recipe is not None
    examples, _ = read_labeled(open_split_labeled(run.recipe, "valid"), task.labels)
    examples = [examples[row] for row in spread_evenly(len(examples), _MAX_TEXTS)]
    result = task.objective.measure_run(run.members, examples, run.generation, task.config.max_tokens)
    texts = [" | ".join(example.texts) for example in examples]
    spread_rows = spread_by_length(texts, _N_SPREAD)
    spread = [(examples[i], result.predictions[i]) for i in spread_rows]
    hardest = [(text.example, text.prediction) for text in result.hardest]
    shown = spread + [pair for pair in hardest if pair not in spread][:_N_MISTAKES]
    supports = Counter(span.label for example in examples for span in example.spans)
    labels = [name.removeprefix("f1_") for name in result.measures if name.startswith("f1_")][:MAX_BARS]
    groups = [
        Group(label[:LONGEST_GROUP_NAME], supports[label], 100 * result.measures[f"f1_{label}"])
        for label in labels
    ]
    return Samples(
        description="Spans of validation texts: some of all lengths, then the least certain ones.",
        columns=("Text", "Prediction", "Label"),
        differences="whole",
        examples=make_examples(
            [" | ".join(example.texts) for example, _ in shown],
            [prediction for _, prediction in shown],
            [example.label for example, _ in shown],
        ),
        breakdowns=[Breakdown("F1 (%)", "label", groups)] if groups else [],
    )


def _decode_row(task: LabeledTextTask, run: Run, row: int) -> str:
    """Decode a text, or both texts of a pair."""
    ids, second_start = task.valid.row_tokens(row).tolist(), int(task.valid.second_starts[row])
    parts = (decode_readable(run.tokenizer, part) for part in (ids[:second_start], ids[second_start:]))
    return " | ".join(part for part in parts if part)


def _compute_outputs(
    task: LabeledTextTask, run: Run, rows: np.ndarray, activate: Callable[[Tensor], Tensor]
) -> np.ndarray:
    """The outputs for validation texts, ``activate`` of their logits: (N, L)."""
    outputs, lengths = np.zeros((len(rows), len(task.labels))), task.valid.lengths[rows]
    for indices in LengthBucketSampler(lengths, lengths, task.config.max_tokens, 0).epoch_batches():
        batch = task.make_batch("valid", rows[indices])
        outputs[indices] = activate(task.compute_logits(run.model, batch).logits).cpu().numpy()
    return outputs
