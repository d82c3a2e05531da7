import numpy as np
import pytest

from polyhead.core.errors import UserError
from polyhead.evaluate.tagging import score_spans, tag_measures


@pytest.mark.parametrize(
    ("references", "predictions", "expected"),
    [  # precision, recall, F1 and mean F1 by seqeval 1.2.2
        ("B-LOC B-LOC / O O / O", "B-LOC O / O O / B-PER", (0.5, 0.5, 0.5, 0.333333)),
        (
            "I-LOC B-PER O E-LOC S-PER O E-LOC B-PER / B-PER B-PER S-PER / O E-LOC S-LOC E-PER B-PER",
            "I-LOC O O E-LOC S-PER O E-LOC B-PER / B-PER E-PER S-PER / I-PER O S-LOC E-PER B-PER",
            (0.818182, 0.692308, 0.75, 0.777778),
        ),
        (
            "B-PER B-PER I-PER I-PER B-LOC I-PER O / I-PER O / O",
            "B-PER B-PER I-PER I-PER B-LOC I-PER O / I-PER I-PER / O",
            (0.8, 0.8, 0.8, 0.875),
        ),
        ("O O", "O O", (0, 0, 0, 0)),
    ],
)
def test_scores_are_those_of_seqeval(references, predictions, expected):
    texts = [[row.split() for row in side.split("/")] for side in (references, predictions)]
    tags = sorted({tag for side in texts for row in side for tag in row})
    joined = [[tag for row in side for tag in (*row, "O")] for side in texts]
    scores = score_spans(joined[1], joined[0])
    assert scores[""][:3] == pytest.approx(expected[:3], abs=1e-6)
    # the same words in another order, and numbers that tell where a text ends
    targets, predicted, number = [], [], 0
    for wanted, found in zip(*texts, strict=True):
        for a, b in zip(wanted, found, strict=True):
            targets.append([tags.index(a), number, 0])
            predicted.append(tags.index(b))
            number += 1
        number += 1
    order = np.random.default_rng(1).permutation(len(targets))
    measures = tag_measures(np.array(predicted)[order], np.array(targets)[order], tags)
    right = sum(
        a == b for wanted, found in zip(*texts, strict=True) for a, b in zip(wanted, found, strict=True)
    )
    assert measures == pytest.approx(
        {"micro_f1": expected[2], "f1": expected[3], "accuracy": right / len(targets)}, abs=1e-6
    )


def test_no_words_are_refused():
    with pytest.raises(UserError, match="nothing to evaluate: no words"):
        tag_measures([], np.zeros((0, 3), dtype=np.int64), ["O"])
