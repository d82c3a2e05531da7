import pytest
from tests.sampling import checksum, parse_shard, sample_cases

GRID = {f"tests/a.py::test_x[{a}-{b}]": {f"a {a}", f"b {b}"} for a in range(20) for b in range(20)}


def test_sample_has_each_part_of_a_grid():
    sample = sample_cases(GRID)
    assert set().union(*(GRID[id] for id in sample)) == set().union(*GRID.values())
    assert set(sorted(GRID, key=checksum)[:20]) <= sample
    assert len(sample) <= 40


def test_sizes_of_samples_and_shards():
    for count, size in ((1, 1), (12, 12), (13, 4), (16, 4), (17, 5), (2580, 51)):
        assert len(sample_cases({f"test_x[{i}]": set() for i in range(count)})) == size
    assert parse_shard("2/4") == (2, 4)
    for text in ("0/4", "5/4", "2", "2/", "a/b", "-1/2"):
        with pytest.raises(pytest.UsageError, match="1 <= i <= n"):
            parse_shard(text)
