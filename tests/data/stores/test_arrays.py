import numpy as np
import pytest

from polyhead.data.stores.build_cache import FlatWriter, open_flat_file


@pytest.mark.parametrize("n", [[], [0], [2, 0, 1], [100_000] * 3], ids=str)
def test_array_is_written_in_parts(tmp_path, n):
    parts = [list(range(k)) for k in n]
    with FlatWriter(tmp_path / "a.npy", np.int32) as writer:
        for part in parts:
            writer.append(part)
    expected = np.array([i for part in parts for i in part], dtype=np.int32)
    assert np.array_equal(open_flat_file(tmp_path / "a.npy"), expected)
    assert np.load(tmp_path / "a.npy").dtype == np.int32
