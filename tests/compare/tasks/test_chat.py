"""Tests of compare/tasks/chat.py."""

from __future__ import annotations

import pytest
from tests.compare.tasks_helpers import compared_rows
from tests.compare.tasks_helpers import texts as texts


@pytest.mark.usefixtures("texts", "in_process")
def test_a_design_that_leaves_conversations_out_says_so_and_comes_last() -> None:
    rows = compared_rows("chat", "--design", "short: data.max_len=29 train.lr=0.05 train.schedule.warmup=1")
    kept = rows["short"]["units"]["loss"]
    assert 0 < kept < 12 == rows["base"]["units"]["loss"]
    assert f"loss of {kept} of 12 conversations, the others are too long" in rows["short"]["note"]
    assert rows["short"]["loss"] < rows["base"]["loss"]  # of the easier conversations
    assert list(rows) == ["base", "short"]
    assert "too long" not in rows["base"]["note"]
