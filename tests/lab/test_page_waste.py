import pytest

from polyhead.lab.page_waste import measure_full_waste, measure_growing_waste

LENGTHS = [3, 8, 1, 5, 12, 7, 4, 9]


@pytest.mark.parametrize("block", [1, 2, 3, 4, 16])
def test_empty_slots_of_full_rows_are_those_behind_their_ends(block):
    slots = [slot for n in LENGTHS for slot in range(-(-n // block) * block)]
    ends = [slot for n in LENGTHS for slot in range(-(-n // block) * block) if slot >= n]
    assert measure_full_waste(LENGTHS, block) == pytest.approx(len(ends) / len(slots))


@pytest.mark.parametrize(("block", "rows"), [(1, 3), (4, 1), (4, 3), (5, 8)])
def test_empty_slots_of_growing_rows_are_those_of_every_step(block, rows):
    waiting, live, held, slots = list(LENGTHS), [], 0, 0
    while waiting or live:
        while waiting and len(live) < rows:
            live.append([0, waiting.pop(0)])
        for row in live:
            row[0] += 1
            held += row[0]
            slots += -(-row[0] // block) * block
        live = [row for row in live if row[0] < row[1]]
    assert measure_growing_waste(LENGTHS, block, rows) == pytest.approx(1 - held / slots)
