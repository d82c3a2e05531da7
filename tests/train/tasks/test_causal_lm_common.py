"""Tests of train/tasks/causal_lm_common.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from polyhead.data.batching.token_windows import TokenWindows
from polyhead.train.tasks.causal_lm_common import causal_lm_features

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("unsynced")]


@pytest.mark.parametrize(
    ("documents", "counts", "told"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_only_what_must_know_is_told_of_positions(documents, counts, told):
    """Documents are always kept apart; padding that nothing sees is told to what counts tokens."""
    pos = torch.tensor([[0, 1, -1]])
    model = SimpleNamespace(needs_padding_mask=counts, features=lambda tokens, pos: pos)
    assert (causal_lm_features(model, TokenWindows(pos, pos, pos, documents)) is not None) == told
