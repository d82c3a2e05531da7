"""Tests of compare/tasks/recovering.py."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.compare.tasks_helpers import Ready
from tests.compare.tasks_helpers import texts as texts
from torch import nn

from polyhead.compare.tasks.base import PageWords
from polyhead.compare.tasks.recovering import ComparedTokenPrediction
from polyhead.data.batching.token_windows import TokenWindows


@pytest.mark.usefixtures("texts")
def test_the_share_of_right_answers_is_counted_token_by_token() -> None:
    ready = Ready("chat", "data.test=null")
    found, kept = ready.quality()
    right = asked = 0
    for i in range(len(ready.task.valid)):
        batch = ready.task.valid.collate(np.array([i]), ready.task.pad_id)
        with torch.no_grad():
            said = ready.model(batch.tokens).argmax(-1)
        mine = batch.labels >= 0
        n, good = int(mine.sum()), int((said == batch.labels)[mine].sum())
        assert kept["text"][i][1:] == [good, n]
        right, asked = right + good, asked + n
    assert 0 < right < asked, (right, asked)
    assert found["accuracy"] == right / asked


def test_units_are_told_by_number() -> None:
    logits = torch.tensor([[[5.0, 0.0], [0.0, 5.0]], [[5.0, 0.0], [0.0, 5.0]]])
    labels = torch.tensor([[0, -100], [1, 1]])

    def rows(*numbers: int) -> TokenWindows:
        chosen = list(numbers)
        return TokenWindows(torch.tensor(chosen), None, labels[chosen])

    part = ComparedTokenPrediction(
        PageWords("", ""),
        lambda *_: [],
        lambda model, batch: logits[batch.tokens],
        make_batch=Mock(),
        compute_logits=lambda model, x: x,
    )
    found = part.score_units(nn.Linear(1, 1), [(np.array([7, 3]), rows(0, 1)), (np.array([5]), rows(1))])
    assert [(one.n_correct, one.n_tokens) for one in found] == [(1, 2), (1, 2), (1, 1)]
