import numpy as np
import pytest

from polyhead.evaluate.baselines import BASELINE_FILE, TrainingCounts, read_counts, write_counts


def test_counts_come_back_as_they_were_written(tmp_path):
    counts = TrainingCounts.from_token_counts(np.array([0, 3, 0, 7]), "今天\n")
    write_counts(tmp_path, counts)
    assert read_counts(tmp_path) == counts
    assert counts.token_counts().tolist() == [0, 3, 0, 7]
    write_counts(tmp_path, TrainingCounts(labels={"a|b": 2}))
    assert (tmp_path / BASELINE_FILE).read_text() == '{"labels":{"a|b":2}}\n'


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"labels": {"a": -1}}', '{"tokens": {"a": 1}}', '{"vocab_size": 1e12}']
)
def test_counts_that_are_damaged_are_no_counts(text, tmp_path):
    (tmp_path / BASELINE_FILE).write_text(text)
    assert read_counts(tmp_path) is None
    assert read_counts(tmp_path / "elsewhere") is None
    assert read_counts(None) is None
