import pytest

from polyhead_lab.paging import measure_full_waste, measure_growing_waste

LENGTHS = [3, 8, 1, 5, 12, 7, 4, 9]


@pytest.mark.parametrize("block", [1, 2, 3, 4, 16])
def test_waste_of_full_rows_is_slots_after_end(block):
    slots = [(slot, n) for n in LENGTHS for slot in range(-(-n // block) * block)]
    empty = sum(slot >= n for slot, n in slots)
    assert measure_full_waste(LENGTHS, block) == pytest.approx(empty / len(slots))


@pytest.mark.parametrize(("block", "rows"), [(1, 3), (4, 1), (4, 3), (5, 8)])
def test_waste_of_growing_rows_is_counted_each_step(block, rows):
    waiting, running, n_tokens, n_slots = list(LENGTHS), [], 0, 0
    while waiting or running:
        while waiting and len(running) < rows:
            running.append([0, waiting.pop(0)])
        for row in running:
            row[0] += 1
            n_tokens += row[0]
            n_slots += -(-row[0] // block) * block
        running = [row for row in running if row[0] < row[1]]
    assert measure_growing_waste(LENGTHS, block, rows) == pytest.approx(1 - n_tokens / n_slots)
