import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyhead.cache.row_cache import RowHistory

ROWS, SLOTS = 5, 12


@given(st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS), max_size=SLOTS))
def test_any_selections_read_what_moved_rows_read(selections):
    history, storage = RowHistory(ROWS, SLOTS), np.zeros((ROWS, SLOTS), int)
    rows, stamp = [[] for _ in range(ROWS)], 0
    for length, selection in enumerate(selections, 1):
        for row in rows:
            stamp += 1
            row.append(stamp)
        storage[history.homes, length - 1] = [row[-1] for row in rows]
        selection = [i % len(rows) for i in selection]
        assert history.select(selection, [length] * len(selection))
        rows = [list(rows[i]) for i in selection]
        assert len(set(history.homes.tolist())) == len(rows)
        stored_rows = storage[history.origins, np.arange(SLOTS)][:, :length]
        assert stored_rows.tolist() == rows


def test_home_with_slots_in_use_is_not_reused():
    """Rows of two texts: the child of the shorter one would write over slots of the longer one."""
    history = RowHistory(3, 8)
    assert history.select([0, 0, 2], [6, 6, 2])  # the second row of the longer text has ended
    assert history.select([1, 2], [7, 2])  # it reads the home of its parent up to slot 5, and has its own
    assert not history.select([0, 1, 1], [7, 2, 2])
    history = RowHistory(4, 8)  # dropping rows shares no slots
    assert history.select([0, 2, 3], [3, 3, 3])
    assert not history.is_shared and history.homes.tolist() == [0, 2, 3]
    assert history.select([1, 1], [4, 4]) and history.is_shared
