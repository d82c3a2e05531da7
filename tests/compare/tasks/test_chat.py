import pytest
from tests.compare.compare_helpers import compare


@pytest.mark.usefixtures("run_trials")
def test_design_with_fewer_conversations_is_last():
    rows = compare("chat", "--design", "short: data.max_len=29 train.lr=0.05 train.schedule.warmup=1")
    n_used = rows["short"]["units"]["loss"]
    assert 0 < n_used < 12 == rows["base"]["units"]["loss"]
    assert f"loss of {n_used} of 12 conversations, the others are too long" in rows["short"]["note"]
    assert rows["short"]["loss"] < rows["base"]["loss"]  # the shorter conversations are easier
    assert list(rows) == ["base", "short"]
    assert "too long" not in rows["base"]["note"]
