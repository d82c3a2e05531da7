from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.compare.compare_helpers import UntrainedTask
from torch import nn

from polyhead.compare.tasks.base import PageWords
from polyhead.compare.tasks.recovering import ComparedTokenPrediction
from polyhead.data.batching.token_windows import TokenWindows


@pytest.mark.usefixtures("workdir")
def test_accuracy_counts_every_label():
    chat = UntrainedTask("chat", "data.test=null", noise=0.3)
    result, units = chat.evaluate()
    n_correct = n_labels = 0
    for i in range(len(chat.task.valid)):
        batch = chat.task.valid.collate(np.array([i]), chat.task.pad_id)
        with torch.no_grad():
            outputs = chat.model(batch.tokens).argmax(-1)
        mask = batch.labels >= 0
        n, correct = int(mask.sum()), int((outputs == batch.labels)[mask].sum())
        assert units["text"][i][1:] == [correct, n]
        n_correct, n_labels = n_correct + correct, n_labels + n
    assert 0 < n_correct < n_labels
    assert result["accuracy"] == n_correct / n_labels


def test_units_keep_their_numbers():
    logits = torch.tensor([[[5.0, 0.0], [0.0, 5.0]], [[5.0, 0.0], [0.0, 5.0]]])
    labels = torch.tensor([[0, -100], [1, 1]])
    task = ComparedTokenPrediction(
        PageWords("", ""),
        lambda *_: [],
        lambda model, batch: logits[batch.tokens],
        make_batch=Mock(),
        compute_logits=lambda model, x: x,
    )
    batches = [
        (np.array(numbers), TokenWindows(torch.tensor(rows), None, labels[rows]))
        for numbers, rows in (([7, 3], [0, 1]), ([5], [1]))
    ]
    scores = task.score_units(nn.Linear(1, 1), batches)
    assert [(one.n_correct, one.n_tokens) for one in scores] == [(1, 2), (1, 2), (1, 1)]
