"""What a classifier shows: predictions, accuracy by class and by length, and which class is taken for which."""

from __future__ import annotations

import numpy as np

from polyhead.analysis.class_metrics import confusion
from polyhead.analysis.samples import (
    Confusion,
    Samples,
    break_down,
    group_by_length,
    group_by_name,
    spread_by_length,
)
from polyhead.data.batches import ByLength
from polyhead.run import Run
from polyhead.train.samples.base import attention_of, is_short, readable, take_samples
from polyhead.train.tasks.classification import Classification, Examples

COUNT, SHARE = 256, 8  # texts that are classified: at most so many, of a long file every eighth
FEWEST = 32  # texts that are classified of a short file
SPREAD, MISTAKES = 8, 24  # of which so many are shown: some of all lengths, and mistakes
MOST_CLASSES = 12  # in the table of confusions
MOST_BARS = 40


@take_samples.register
def classification_samples(task: Classification, run: Run) -> Samples:
    """Predictions for validation texts, evenly spread over the file."""
    count = min(COUNT, max(FEWEST, len(task.valid) // SHARE))
    rows = np.unique(np.linspace(0, len(task.valid) - 1, count).astype(np.int64))
    texts = [_text(task, run, int(row)) for row in rows]
    wanted, lengths = task.valid.labels[rows].tolist(), task.valid.lengths[rows]
    given, sure = _predict(task, run, rows, lengths)
    right = [a == b for a, b in zip(given, wanted, strict=True)]

    def accuracy(some: list[int]) -> float:
        return 100 * sum(right[i] for i in some) / len(some)

    spread = spread_by_length(texts, SPREAD)
    mistakes = [i for i, correct in enumerate(right) if not correct and i not in spread][:MISTAKES]
    classes = group_by_name(task.labels[label] for label in wanted)
    worst = sorted(classes, key=lambda name: accuracy(classes[name]))[:MOST_BARS]
    shown = [name for name in classes if name in worst]
    counts = confusion(given, wanted, len(task.labels))
    short = [texts[i] for i in spread if is_short(run.tokenizer, texts[i]) and " | " not in texts[i]]
    return Samples(
        about="Predictions for validation texts: some of all lengths, then mistakes.",
        columns=("Text", "Prediction", "Label"),
        differences="whole",
        examples=[
            {
                "source": texts[i],
                "output": task.labels[given[i]],
                "reference": task.labels[wanted[i]],
                "note": f"p = {sure[i]:.2f}",
            }
            for i in [*spread, *mistakes]
        ],
        breakdowns=[
            break_down("Accuracy (%)", "class", {name: classes[name] for name in sorted(shown)}, accuracy),
            break_down("Accuracy (%)", "length in tokens", group_by_length(lengths.tolist()), accuracy),
        ],
        confusion=(
            Confusion(list(task.labels), counts.tolist()) if len(task.labels) <= MOST_CLASSES else None
        ),
        attention=attention_of(run, "self", *((text, None) for text in short)),
    )


def _text(task: Classification, run: Run, row: int) -> str:
    """The text, or both texts of a pair."""
    ids, second = task.valid.row(row).tolist(), int(task.valid.seconds[row])
    parts = (readable(run.tokenizer, part) for part in (ids[:second], ids[second:]))
    return " | ".join(part for part in parts if part)


def _predict(
    task: Classification, run: Run, rows: np.ndarray, lengths: np.ndarray
) -> tuple[list[int], list[float]]:
    """The class of each row and its probability."""
    given, sure = [0] * len(rows), [0.0] * len(rows)
    for some in ByLength(lengths, lengths, task.config.max_tokens, 0).plan():
        batch = Examples(*task.valid.batch(rows[some], run.tokenizer.pad_id))
        best = task.scores(run.model, batch).logits.float().softmax(-1).max(-1)
        for i, probability, label in zip(some, best.values.tolist(), best.indices.tolist(), strict=True):
            given[int(i)], sure[int(i)] = label, probability
    return given, sure
