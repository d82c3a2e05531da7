from types import SimpleNamespace

import pytest
import torch

from polyhead.data.batching.token_windows import TokenWindows
from polyhead.train.tasks.common import causal_lm_features


@pytest.mark.parametrize(
    ("has_documents", "needs_mask", "has_positions"),
    [(False, False, False), (False, True, True), (True, False, True)],
)
def test_positions_for_documents_and_padding_masks(has_documents, needs_mask, has_positions):
    """Documents are always separated; padding that nothing attends to matters only to parts that count."""
    pos = torch.tensor([[0, 1, -1]])
    model = SimpleNamespace(needs_padding_mask=needs_mask, features=lambda tokens, pos: pos)
    batch = TokenWindows(pos, pos, pos, has_documents)
    assert (causal_lm_features(model, batch) is not None) == has_positions
