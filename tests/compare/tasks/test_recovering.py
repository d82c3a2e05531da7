import numpy as np
import pytest
import torch
from tests.compare.compare_helpers import UntrainedTask, compare
from torch import nn

from polyhead.compare.tasks.base import score_units
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
    functions = (lambda model, batch: logits[batch.tokens], lambda model, x: x)
    batches = [
        (np.array(numbers), TokenWindows(torch.tensor(rows), None, labels[rows]))
        for numbers, rows in (([7, 3], [0, 1]), ([5], [1]))
    ]
    scores = score_units(nn.Linear(1, 1), batches, *functions)
    assert [(one.n_correct, one.n_tokens) for one in scores] == [(1, 2), (1, 2), (1, 1)]


@pytest.mark.usefixtures("run_trials")
def test_design_with_fewer_conversations_is_last():
    rows = compare("chat", "--design", "short: data.max_len=29 train.lr=0.05 train.schedule.warmup=1")
    n_used = rows["short"]["units"]["loss"]
    assert 0 < n_used < 12 == rows["base"]["units"]["loss"]
    assert f"loss of {n_used} of 12 conversations, the others are too long" in rows["short"]["note"]
    assert rows["short"]["loss"] < rows["base"]["loss"]  # the shorter conversations are easier
    assert list(rows) == ["base", "short"]
    assert "too long" not in rows["base"]["note"]
