"""Tests of data/stores/arrays.py."""

from pathlib import Path

import numpy as np

from polyhead.data.stores.arrays import FlatWriter, open_flat_file


def test_an_array_is_written_piece_by_piece(tmp_path: Path) -> None:
    for pieces in ([], [[]], [[1, 2], [], [3]], [list(range(100_000))] * 3):
        with FlatWriter(tmp_path / "a.npy", np.int32) as out:
            for piece in pieces:
                out.append(piece)
        expected = np.array([i for piece in pieces for i in piece], dtype=np.int32)
        assert np.array_equal(open_flat_file(tmp_path / "a.npy"), expected)
        assert np.load(tmp_path / "a.npy").dtype == np.int32
