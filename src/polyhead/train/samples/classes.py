"""Samples of a classifier: predictions, accuracy by class and by length, and the confusion matrix."""

from __future__ import annotations

import numpy as np

from polyhead.data.batching.length_bucketing import LengthBucketSampler
from polyhead.evaluate.classify import confusion_matrix
from polyhead.run.run import Run
from polyhead.train.samples.base import collect_attention, decode_readable, is_short, take_samples
from polyhead.train.tasks.classification import ClassificationBatch, ClassificationTask
from polyhead.viz.samples import (
    Confusion,
    Samples,
    break_down,
    group_by_length,
    group_by_name,
    spread_by_length,
)

_MAX_TEXTS, _TEXT_STRIDE = 256, 8  # classified texts: at most COUNT, of a long file one in SHARE
MIN_TEXTS = 32  # classified texts of a short file
_N_SPREAD, _N_MISTAKES = 8, 24  # shown texts: some of all lengths, and mistakes
MAX_CLASSES = 12  # in the confusion matrix
MAX_BARS = 40


@take_samples.register
def classification_samples(task: ClassificationTask, run: Run) -> Samples:
    """Predictions for validation texts, evenly spread over the file."""
    count = min(_MAX_TEXTS, max(MIN_TEXTS, len(task.valid) // _TEXT_STRIDE))
    rows = np.unique(np.linspace(0, len(task.valid) - 1, count).astype(np.int64))
    texts = [_decode_row(task, run, int(row)) for row in rows]
    references, lengths = task.valid.labels[rows].tolist(), task.valid.lengths[rows]
    predictions, confidences = _predict(task, run, rows, lengths)
    is_correct = [a == b for a, b in zip(predictions, references, strict=True)]

    def accuracy(indices: list[int]) -> float:
        return 100 * sum(is_correct[i] for i in indices) / len(indices)

    spread_rows = spread_by_length(texts, _N_SPREAD)
    mistakes = [i for i, correct in enumerate(is_correct) if not correct and i not in spread_rows][
        :_N_MISTAKES
    ]
    classes = group_by_name(task.labels[label] for label in references)
    worst_classes = sorted(classes, key=lambda name: accuracy(classes[name]))[:MAX_BARS]
    class_names = [name for name in classes if name in worst_classes]
    counts = confusion_matrix(predictions, references, len(task.labels))
    short_texts = [
        texts[i] for i in spread_rows if is_short(run.tokenizer, texts[i]) and " | " not in texts[i]
    ]
    return Samples(
        description="Predictions for validation texts: some of all lengths, then errors.",
        columns=("Text", "Prediction", "Label"),
        differences="whole",
        examples=[
            {
                "source": texts[i],
                "output": task.labels[predictions[i]],
                "reference": task.labels[references[i]],
                "note": f"p = {confidences[i]:.2f}",
            }
            for i in [*spread_rows, *mistakes]
        ],
        breakdowns=[
            break_down(
                "Accuracy (%)", "class", {name: classes[name] for name in sorted(class_names)}, accuracy
            ),
            break_down("Accuracy (%)", "length in tokens", group_by_length(lengths.tolist()), accuracy),
        ],
        confusion=(
            Confusion(list(task.labels), counts.tolist()) if len(task.labels) <= MAX_CLASSES else None
        ),
        attention=collect_attention(run, "self", *((text, None) for text in short_texts)),
    )


def _decode_row(task: ClassificationTask, run: Run, row: int) -> str:
    """Decode a text, or both texts of a pair."""
    ids, second_start = task.valid.row_tokens(row).tolist(), int(task.valid.second_starts[row])
    parts = (decode_readable(run.tokenizer, part) for part in (ids[:second_start], ids[second_start:]))
    return " | ".join(part for part in parts if part)


def _predict(
    task: ClassificationTask, run: Run, rows: np.ndarray, lengths: np.ndarray
) -> tuple[list[int], list[float]]:
    """The class of each row and its probability."""
    predictions, confidences = [0] * len(rows), [0.0] * len(rows)
    for indices in LengthBucketSampler(lengths, lengths, task.config.max_tokens, 0).epoch_batches():
        batch = ClassificationBatch(*task.valid.collate(rows[indices], run.tokenizer.pad_id))
        best = task.compute_logits(run.model, batch).logits.float().softmax(-1).max(-1)
        for i, probability, label in zip(indices, best.values.tolist(), best.indices.tolist(), strict=True):
            predictions[int(i)], confidences[int(i)] = label, probability
    return predictions, confidences
