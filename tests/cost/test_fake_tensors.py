"""Tests of cost/fake_tensors.py."""

from __future__ import annotations

import torch

from polyhead.cost.fake_tensors import SavedActivations


def test_what_is_saved_is_counted_once_and_without_the_weights() -> None:
    model = torch.nn.Linear(8, 4)
    x = torch.ones(5, 8, requires_grad=True)
    with SavedActivations(model) as saved:
        y = model(x) * 1.0
        (y @ y.T).exp()
    assert saved.nbytes == 4 * (5 * 8 + 5 * 4 + 5 * 5)  # x; y, twice a factor; what exp gives
